"""The operator's program: what it refuses and looks at, which rights it uses, what it tells of itself."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from integration import served_objects
from integration.rig import TOKEN, URL, Rig
from integration.served_objects import ServedObjects, pytorchjob, serving
from integration.test_operator_managed import job, jobset
from phalanx.errors import UserError
from phalanx.executors.kubernetes.client import KubernetesClient
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.operator.__main__ import main
from phalanx.operator.cluster import ServedCluster, WatchScope
from phalanx.operator.control_plane import ObjectJobs
from phalanx.operator.kinds import SERVE_LABEL, UID_LABEL
from phalanx.operator.metrics import OperatorMetrics
from phalanx.operator.program import Operator, OperatorOptions
from phalanx.operator.reconciler import Reconciler
from phalanx.operator.rivals import find_rival, refuse_rival
from phalanx.operator.submission import KINDS, SubmissionTarget
from phalanx.sdk import PhalanxClient
from phalanx.testing.kubernetes.api import FakeKubernetes
from support.waiting import wait_until

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes" / "operator"
TEMPLATE = ROOT / "deploy" / "helm" / "phalanx" / "templates" / "operator.yaml"
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
WEBHOOK = {
    "metadata": {"name": "validator.training-operator.kubeflow.org"},
    "webhooks": [{"rules": [{"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"]}]}],
}
IMAGE = {"image": "kubeflow/training-operator:v1-855e096"}
DEPLOYMENT = {
    "metadata": {"name": "controller"},
    "spec": {"template": {"spec": {"containers": [IMAGE]}}},
}


@pytest.fixture
def api(tmp_path: Path):
    made = FakeKubernetes()
    made.add_custom(served_objects.FIXTURES / "pytorchjobs.yaml")
    for name in ("kube-system", "kubeflow"):
        made.add_namespace(name)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("plural", "namespace", "body", "said"),
    [
        ("validatingwebhookconfigurations", "", WEBHOOK, "WebhookConfiguration validator.training"),
        ("deployments", "kubeflow", DEPLOYMENT, "Deployment kubeflow/controller"),
    ],
)
def test_a_training_operator_in_the_cluster_is_a_refusal_that_names_it(
    api, tmp_path, capsys, plural: str, namespace: str, body: dict[str, Any], said: str
) -> None:
    client = KubernetesClient(from_kubeconfig(api.kubeconfig(tmp_path / "kubeconfig")))
    assert find_rival(client) is None
    other = {"metadata": {"name": "web"}, "spec": {"template": {"spec": {"containers": []}}}}
    api.store.create("deployments", "kubeflow", other)
    assert find_rival(client) is None
    api.store.create(plural, namespace, body)
    with pytest.raises(UserError, match=said):
        refuse_rival(client)
    client.close()
    env = {"PHALANX_URL": "http://127.0.0.1:1", "PHALANX_TOKEN": "t"}
    assert main(["--kubeconfig", str(tmp_path / "kubeconfig")], env) == 1
    assert "import objects with `phalanx submit FILE`" in capsys.readouterr().err


def test_a_missing_right_is_one_message(api, tmp_path, capsys) -> None:
    api.denied["list", "deployments"] = "deployments.apps is forbidden"
    env = {"PHALANX_URL": "http://127.0.0.1:1", "PHALANX_TOKEN": "t"}
    assert main(["--kubeconfig", str(api.kubeconfig(tmp_path / "kubeconfig"))], env) == 1
    said = capsys.readouterr().err
    assert "refuses: deployments.apps is forbidden" in said
    assert "deploy/kubernetes/operator/rbac.yaml" in said


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        ([], {}, "needs the address of a control plane and a token"),
        (["--workers", "0"], None, "--workers: must be from 1 to 64, not 0"),
        (["--metrics-port", "70000"], None, "--metrics-port: must be a port, not 70000"),
        ([], None, "name a file with --kubeconfig"),
        (["--namespace", "Team A"], None, "--namespace: 'Team A' is no name of a namespace"),
        (["--selector", "team in (a)"], None, "--selector: 'team in (a)' selects no labels"),
        (["--kubeconfig", "/nowhere"], None, "the kubeconfig /nowhere cannot be read"),
        (["--worker"], None, "usage: phalanx operator"),
    ],
)
def test_options_that_are_wrong_get_one_message(
    capsys, words: list[str], env: dict[str, str] | None, said: str
) -> None:
    whole = {"PHALANX_URL": "http://127.0.0.1:1", "PHALANX_TOKEN": "t"} if env is None else env
    assert main(words, whole) == 1
    assert said in capsys.readouterr().err


class RunningOperator:
    """An operator in threads of this process."""

    def __init__(self, served: ServedObjects, token: str = TOKEN) -> None:
        def connect() -> PhalanxClient:
            return PhalanxClient(URL, token, transport=served.rig.transport)

        access = from_kubeconfig(served.kubeconfig)
        self.operator = Operator(
            access, connect, OperatorOptions(workers=2, feed_wait_s=0.0), served.rig.clock
        )
        self.errors: list[Exception] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.operator.run()
        except Exception as error:
            self.errors.append(error)

    def metrics(self) -> dict[str, float]:
        """Samples without labels of time, by name and labels."""
        return {
            f"{one.name}{sorted(one.labels.values())}": one.value
            for family in self.operator.metrics.registry.collect()
            for one in family.samples
        }

    def stop(self) -> None:
        self.operator.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_objects_are_served_by_themselves_until_a_training_operator_comes(
    rig: Rig, tmp_path: Path
) -> None:
    with serving(rig, tmp_path) as served:
        served.api.add_namespace("kubeflow")
        running = RunningOperator(served)
        try:
            key = served.apply(pytorchjob())
            wait_until(lambda: served.conditions(key) == ["Created"], "its status")
            rig.client.stop(1)
            wait_until(lambda: "Failed" in served.conditions(key), "the news of its end")
            key = served.apply(pytorchjob("second"))
            wait_until(lambda: len(rig.client.jobs().jobs) == 2, "another job")
            served.cluster.delete(key, served.object(key)["metadata"]["uid"])
            wait_until(lambda: rig.job(2).state == "cancelled", "its end")
            wait_until(lambda: running.metrics()["phalanx_operator_objects['PyTorchJob']"] == 1)
            found = running.metrics()
            assert found["phalanx_operator_reconciles_total['PyTorchJob', 'ok']"] >= 3
            assert found["phalanx_operator_contact[]"] == 1
        finally:
            running.stop()
        assert running.errors == []
        served.api.store.create("deployments", "kubeflow", DEPLOYMENT)
        refused = RunningOperator(served)
        refused.thread.join(30)
        assert "a training-operator serves PyTorchJobs" in str(refused.errors[0])


def test_a_service_account_of_the_projects_is_enough(rig: Rig, tmp_path: Path) -> None:
    rig.client.accounts.add("pytorchjobs", "service")
    rig.client.accounts.grant("service:pytorchjobs", "member", "vision")
    made = rig.client.create_token("operator", ["submit"], principal="service:pytorchjobs")
    with serving(rig, tmp_path) as served:
        served.api.store.create(
            "namespaces", "", {"metadata": {"name": "text", "labels": {SERVE_LABEL: "pytorchjob"}}}
        )
        running = RunningOperator(served, made.token)
        try:
            key = served.apply(pytorchjob())
            wait_until(lambda: served.conditions(key) == ["Created"], "its status")
            assert rig.job(1).owner == "service:pytorchjobs"
            served.change(key, suspend=True)
            wait_until(lambda: rig.job(1).state == "paused", "its pause")
            elsewhere = pytorchjob()
            elsewhere["metadata"]["namespace"] = "text"
            served.apply(elsewhere)
            wait_until(
                lambda: any(r == "PyTorchJobSubmissionFailed" for r, _ in served.events()), "a word"
            )
            assert len(rig.client.jobs().jobs) == 1
        finally:
            running.stop()
        assert running.errors == []


def test_objects_outside_of_the_scope_are_neither_listed_nor_touched(
    rig: Rig, tmp_path: Path
) -> None:
    with serving(rig, tmp_path) as served:
        for name in ("text", "audio"):
            labels = {SERVE_LABEL: "pytorchjob", "phalanx.dev/project": "vision"}
            body = {"metadata": {"name": name, "labels": labels}}
            served.api.store.create("namespaces", "", body)
        keys = []
        for namespace, stage in (
            ("team", "main"),
            ("text", "main"),
            ("audio", "main"),
            ("text", "x"),
        ):
            one = pytorchjob(f"{namespace}-{stage}")
            one["metadata"] |= {"namespace": namespace, "labels": {"stage": stage}}
            keys.append(served.apply(one))
        scope = WatchScope(("text", "team"), "stage=main")
        cluster = ServedCluster(served.client, KINDS, scope=scope)
        assert cluster.wait_ready(20)
        try:
            assert cluster.identity() == served.cluster.identity()
            assert set(cluster.versions()) == set(keys[:2])
            jobs = ObjectJobs(rig.client, cluster.identity())
            reconciler = Reconciler(cluster, jobs, SubmissionTarget(cluster.identity()))
            for key in keys[:3]:
                reconciler.reconcile(key, 0)
            assert sorted(one.name for one in rig.client.jobs().jobs) == ["team-main", "text-main"]
            # The job of an object that another operator serves is not cancelled here.
            served.look(keys[2])
            served.cluster.delete(keys[2], served.object(keys[2])["metadata"]["uid"])
            reconciler.reconcile(keys[2], 0)
            assert rig.job(3).state == "queued"
        finally:
            for mirror in cluster._mirrors:
                mirror.close()


def granted(documents: list[dict[str, Any]], kind: str) -> set[tuple[str, str, str]]:
    (rules,) = [one["rules"] for one in documents if one["kind"] == kind]
    return {
        (group, what, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for what in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_rights_are_those_that_are_used(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, set[tuple[str, str, str]]] = {"Role": set(), "ClusterRole": set()}

    def note(path: str, verb: str) -> None:
        words = path.strip("/").split("/")
        group, words = ("", words[2:]) if words[0] == "api" else (words[1], words[3:])
        if not words:
            return  # the list of resources of a group, which every account may read
        role = "ClusterRole"
        if words[0] == "namespaces" and len(words) > 2:
            role, words = "Role", words[2:]
        if verb == "GET":
            verb = "get" if len(words) > 1 else "list"
        what = f"{words[0]}/{words[2]}" if len(words) > 2 else words[0]
        used[role].add((group, what, verb))

    class Recording(KubernetesClient):
        def call(self, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
            note(path, VERBS.get(method, method))
            return super().call(method, path, *args, **kwargs)

        def watch(self, path: str, *args: Any, **kwargs: Any) -> Any:
            note(path, "watch")
            return super().watch(path, *args, **kwargs)

    with serving(rig, tmp_path) as served:
        key = served.apply(pytorchjob(ttlSecondsAfterFinished=0))
        other = served.apply(pytorchjob("other"))
        jobs = [served.apply(make("train")) for make in (job, jobset)]
        passing = served.apply(jobset("passing", ttlSecondsAfterFinished=0))
        monkeypatch.setattr("phalanx.operator.program.KubernetesClient", Recording)
        running = RunningOperator(served)
        try:
            wait_until(lambda: served.conditions(key) == ["Created"], "its status")
            uid = served.object(key)["metadata"]["uid"]
            meta = {"name": "phx-a1-j1-a1-n0", "labels": {UID_LABEL: uid}}
            served.api.store.create("pods", "team", {"metadata": meta, "spec": {}})
            wait_until(lambda: ("", "pods", "patch") in used["Role"], "labels of a pod")
            served.cluster.delete(other, served.object(other)["metadata"]["uid"])
            num = next(one.num for one in rig.client.jobs().jobs if one.name == "llm")
            rig.client.stop(num)
            wait_until(lambda: "Failed" in served.conditions(key), "its end")
            for one in jobs:
                wait_until(lambda one=one: "status" in served.object(one), "their status")
                served.cluster.delete(one, served.object(one)["metadata"]["uid"])
            rig.client.stop(next(v.num for v in rig.client.jobs().jobs if v.name == "passing"))
            wait_until(lambda: "Failed" in served.conditions(passing), "its end")
            rig.clock.advance(5)
            for one in (key, passing):
                wait_until(lambda one=one: served.cluster.read(one) is None, "its deletion")
            wait_until(
                lambda: all(v.is_terminal for v in rig.client.jobs().jobs), "the end of all jobs"
            )
        finally:
            running.stop()
        assert running.errors == []
    documents = [one for one in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()) if one]
    assert used == {kind: granted(documents, kind) for kind in used}


def test_the_chart_has_the_rights_and_the_container_of_the_manifests() -> None:
    documents = [one for one in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()) if one]
    sections = TEMPLATE.read_text().split("\n---\n")
    for kind in ("Role", "ClusterRole"):
        (section,) = [one for one in sections if re.search(rf"^kind: {kind}$", one, re.M)]
        rules = re.sub(r"(?m)^\s*{{.*}}$", "", section.split("\nrules:\n")[1])
        (own,) = [one for one in documents if one["kind"] == kind]
        assert yaml.safe_load(rules) == own["rules"], kind
    (pod,) = [
        one["spec"]["template"]["spec"]
        for one in yaml.safe_load_all((MANIFESTS / "deployment.yaml").read_text())
    ]
    (container,) = pod["containers"]
    for word in [one for one in container["args"] if one.startswith("--")]:
        assert f"- {word}\n" in sections[-1]
    for name in [one["name"] for one in container["env"]]:
        assert f"- name: {name}\n" in sections[-1]
    volumes = [one["name"] for one in pod["volumes"]]
    assert volumes == [one["name"] for one in container["volumeMounts"]]
    assert all(f"{{name: {one}," in sections[-1] for one in volumes)


def test_the_metrics_are_served_and_a_taken_port_is_named() -> None:
    metrics, other = OperatorMetrics(), OperatorMetrics()
    port = metrics.serve(0, "127.0.0.1")
    try:
        with pytest.raises(UserError, match="--metrics-port"):
            other.serve(port, "127.0.0.1")
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert "phalanx_operator_queue_length 0.0" in text
    finally:
        metrics.close()
