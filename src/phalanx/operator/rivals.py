"""Whether a training-operator runs in the cluster: two programs must not serve the same objects."""

from __future__ import annotations

from phalanx.errors import UserError
from phalanx.executors.kubernetes.client import KubernetesClient, Object
from phalanx.operator.kinds import section
from phalanx.operator.pytorchjobs import PyTorchJobKind

_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_DEPLOYMENTS = "/apis/apps/v1/deployments"
_LABEL = ("control-plane", "kubeflow-training-operator")
_NAME = "training-operator"


def find_rival(client: KubernetesClient) -> str | None:
    """The training-operator of a cluster in words, or None.

    Raises ExecutorUnavailable, and KubernetesRefused where it may not be looked for.
    """
    for one in client.list(_WEBHOOKS).items:
        if _checks_pytorchjobs(one):
            return f"its ValidatingWebhookConfiguration {one['metadata']['name']}"
    for one in client.list(_DEPLOYMENTS).items:
        if _is_training_operator(one):
            meta = one["metadata"]
            return f"its Deployment {meta.get('namespace', '')}/{meta['name']}"
    return None


def refuse_rival(client: KubernetesClient) -> None:
    """Raise UserError while a training-operator is there."""
    found = find_rival(client)
    if found is not None:
        raise rival_error(found)


def rival_error(found: str) -> UserError:
    """The error for a training-operator that is there."""
    return UserError(
        f"a training-operator serves PyTorchJobs in this cluster: {found} is there",
        "import objects with `phalanx submit FILE`, or remove the training-operator first",
    )


def _checks_pytorchjobs(configuration: Object) -> bool:
    for webhook in configuration.get("webhooks") or ():
        for rule in webhook.get("rules") or ():
            if PyTorchJobKind.group in (rule.get("apiGroups") or ()) and PyTorchJobKind.plural in (
                rule.get("resources") or ()
            ):
                return True
    return False


def _is_training_operator(deployment: Object) -> bool:
    template = section(section(deployment, "spec"), "template")
    for meta in (deployment["metadata"], section(template, "metadata")):
        if (meta.get("labels") or {}).get(_LABEL[0]) == _LABEL[1]:
            return True
    containers = section(template, "spec").get("containers") or ()
    images = [str(one.get("image", "")).partition("@")[0] for one in containers]
    return any(image.rpartition("/")[2].partition(":")[0] == _NAME for image in images)
