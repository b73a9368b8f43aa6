"""What the refusals of an API server mean for a job spec: the policy, and the key."""

import pytest

from phalanx.core.contract.pods import PodContract, SideContainer, VolumeMount
from phalanx.executors.kubernetes.client import KubernetesRefused
from phalanx.executors.kubernetes.policies.refusals import is_for_now, policy_problems

pytestmark = pytest.mark.unit
POD = PodContract(
    mounts=(VolumeMount("pvc", "d", "/d"), VolumeMount("hostpath", "/mnt", "/m")),
    sidecars=(SideContainer(name="metrics", image="e:1"),),
    init=(SideContainer(name="unpack", image="t:1"),),
)


def found(message, status=403, pod=POD, slot="nvidia.com/gpu"):
    refused = KubernetesRefused(status, "Forbidden", f'pods "p" is forbidden: {message}')
    return [(one.path, one.message) for one in policy_problems(refused, "team", pod, slot)]


def test_each_violation_of_pod_security_has_its_key():
    said = (
        'violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true), '
        'allowPrivilegeEscalation != false (container "metrics" must set it), unrestricted capabilities '
        '(container "unpack" must set it, or x), restricted volume types (volume "m" uses restricted '
        'volume type "hostPath"), runAsNonRoot != true (pod must set it)'
    )
    problems = found(said)
    assert [path for path, _ in problems] == [
        "kubernetes.host_network",
        "kubernetes.sidecars[0]",
        "kubernetes.init[0]",
        "mounts[1].source",
        "image",
    ]
    assert problems[0][1] == (
        "the Pod Security level restricted:latest of namespace team forbids it: host namespaces "
        "(hostNetwork=true)"
    )


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("maximum memory usage per Container is 4Gi, but limit is 8Gi", "resources.memory"),
        ("minimum cpu usage per Pod is 2, but request is 1", "resources.cpus"),
        (
            "maximum nvidia.com/gpu usage per Pod is 2, but limit is 8",
            "resources.slots_per_node",
        ),
        (
            "maximum ephemeral-storage usage per Container is 1Gi, but limit is 2Gi",
            "kubernetes.resources.ephemeral-storage",
        ),
    ],
)
def test_limits_of_a_namespace(said, path):
    assert found(said) == [(path, f"a LimitRange of namespace team forbids it: {said}")]


def test_two_limits_are_two_problems():
    two = (
        "[maximum cpu usage per Container is 2, but limit is 3, maximum memory usage per Container "
        "is 4Gi, but limit is 8Gi]"
    )
    assert [path for path, _ in found(two)] == ["resources.cpus", "resources.memory"]


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ('admission webhook "images.example.com" denied the request: image is unsigned', "image"),
        (
            'admission webhook "teams.example.com" denied the request: label team is missing',
            "kubernetes.labels",
        ),
        ('admission webhook "x.example.com" denied the request: not on Fridays', "pool"),
        (
            "ValidatingAdmissionPolicy 'no-root' with binding 'all' denied request: bad hostNetwork",
            "kubernetes.host_network",
        ),
    ],
)
def test_webhooks_and_policies_are_named(said, path):
    ((at, message),) = found(said)
    assert at == path
    assert message.startswith(("the webhook", "the policy"))
    assert said.rpartition(": ")[2] in message


def test_other_refusals_keep_the_words_of_kubernetes():
    ((at, message),) = found(
        'error looking up service account team/x: serviceaccount "x" not found'
    )
    assert at == "kubernetes.service_account"
    assert message.startswith("Kubernetes refuses the pods: ")
    assert found("", status=404)[0][0] == "pool"
    assert "namespace team does not exist" in found("", status=404)[0][1]


def test_what_may_pass_is_no_refusal():
    quota = KubernetesRefused(403, "Forbidden", "exceeded quota: team, requested: pods=1")
    assert is_for_now(quota)
    assert is_for_now(KubernetesRefused(409, "AlreadyExists", "x"))
    assert not is_for_now(KubernetesRefused(403, "Forbidden", "violates PodSecurity"))
