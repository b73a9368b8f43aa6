"""Pod templates of Kubernetes objects: the table of their keys, and what a node gets from them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from phalanx.kit.units import parse_quantity
from phalanx.schemas.foreign.documents import unfilled_in
from phalanx.schemas.foreign.kubernetes.side_containers import SIDE_CONTAINER, read_side
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import KeyAction, KeyRule, dropped, mapped, refused, under
from phalanx.schemas.spec.fields import MAX_WHOLE
from phalanx.schemas.spec.roles import OUR_PREFIXES, OURS

_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_TPU = "google.com/tpu"
GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi", _TPU)
_GPU_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "k8s.amazonaws.com/accelerator",
    "amd.com/gpu.product-name",
)
# Programs that may stand at the head of arguments without a command.
_STARTS = re.compile(
    r"(.*/)?(python3?(\.\d+)?|(ba)?sh|torchrun|accelerate|fabric|mpirun|mpiexec|horovodrun|deepspeed|env)"
)
_NO_POD = "pods of a job have no such setting here; remove it"
_CONTAINER: tuple[KeyRule, ...] = (
    *mapped("run", "command", "args"),
    *mapped("env", "env", "env.*.name", "env.*.value"),
    *mapped("secrets", "env.*.valueFrom"),
    *refused("write each variable in `env`", "envFrom", of_image=True),
    *mapped("image", "image", of_image=True),
    *dropped("the pool decides", "imagePullPolicy", "terminationMessagePath"),
    *dropped("the pool decides", "terminationMessagePolicy", "resizePolicy"),
    *mapped("which container trains", "name"),
    *dropped("ranks find each other without ports of the pod", "ports"),
    *dropped("Phalanx watches ranks and steps itself", "livenessProbe", "readinessProbe"),
    *dropped("Phalanx watches ranks and steps itself", "startupProbe"),
    *dropped("jobs have no terminal", "stdin", "stdinOnce", "tty"),
    *mapped("resources", "resources", "resources.limits", "resources.requests"),
    *refused("devices by claim are not supported; write a limit of GPUs", "resources.claims"),
    *refused(_NO_POD, "lifecycle", "volumeDevices", "workingDir", of_image=True),
    *refused(_NO_POD, "securityContext", of_image=True),
    *refused("restarts are those of the job", "restartPolicy", "restartPolicyRules"),
    *mapped("mounts", "volumeMounts", of_image=True),
)
POD_SPEC: tuple[KeyRule, ...] = (
    *under("containers.*", _CONTAINER),
    *under("initContainers.*", SIDE_CONTAINER),
    *refused("not supported", "ephemeralContainers", of_image=True),
    *mapped("mounts", "volumes", of_image=True),
    *mapped("placement.selector", "nodeSelector", "affinity.nodeAffinity", of_image=True),
    *mapped("placement.tolerate", "tolerations", of_image=True),
    *refused("placement near other pods is not supported", "affinity.podAffinity", of_image=True),
    *dropped("nodes of a gang are different machines already", "affinity.podAntiAffinity"),
    *dropped("Phalanx chooses the nodes", "schedulerName", "topologySpreadConstraints"),
    *dropped("Phalanx chooses the nodes", "preemptionPolicy", "nodeName", "priority"),
    *dropped("priorities are those of Phalanx: write `priority:`", "priorityClassName"),
    *mapped("grace", "terminationGracePeriodSeconds"),
    *refused("write it in the job, not in its pods", "activeDeadlineSeconds"),
    *dropped("restarts are those of the job", "restartPolicy"),
    *dropped("the pool decides", "automountServiceAccountToken", "enableServiceLinks", "dnsPolicy"),
    *dropped("the pool decides", "setHostnameAsFQDN", "subdomain", "hostname", "hostnameOverride"),
    *dropped("the pool decides", "readinessGates", "os"),
    *refused(_NO_POD, "dnsConfig", "hostAliases", "hostIPC", of_image=True),
    *mapped("kubernetes.host_network", "hostNetwork", of_image=True),
    *refused(_NO_POD, "hostPID", "hostUsers", "overhead", of_image=True),
    *mapped("kubernetes.image_pull_secrets", "imagePullSecrets", of_image=True),
    *refused(_NO_POD, "resourceClaims", "resources", of_image=True),
    *mapped("kubernetes.runtime_class", "runtimeClassName", of_image=True),
    *refused(_NO_POD, "schedulingGates", "schedulingGroup", "securityContext", of_image=True),
    *mapped("kubernetes.service_account", "serviceAccount", "serviceAccountName", of_image=True),
    *refused(_NO_POD, "shareProcessNamespace", of_image=True),
)
POD_TEMPLATE: tuple[KeyRule, ...] = (
    *dropped("labels of pods are those of Phalanx", "metadata"),
    *under("spec", POD_SPEC),
)
METADATA: tuple[KeyRule, ...] = (
    *mapped("name", "metadata.name", "metadata.generateName"),
    *dropped("write `project:` or --project; jobs have no namespace", "metadata.namespace"),
    *mapped("labels", "metadata.labels"),
    *dropped("annotations of the object have no effect", "metadata.annotations"),
    *dropped("set by the cluster", "metadata.uid", "metadata.resourceVersion"),
    *dropped("set by the cluster", "metadata.creationTimestamp", "metadata.generation"),
    *dropped("set by the cluster", "metadata.managedFields", "metadata.finalizers"),
    *dropped("set by the cluster", "metadata.ownerReferences", "metadata.selfLink", "status"),
)


def read_pod(
    template: ForeignReader,
    container: str | None,
    starts: bool = True,
    default_image: bool = False,
) -> PodNeeds:
    """What a pod template asks for. Problems go to the log.

    `container` is the name of the container that trains, or None where there may be only one. Without
    `starts` the container needs no command: that of another pod starts the ranks. With `default_image` it
    needs no image.
    """
    needs = PodNeeds()
    spec = template.at("spec")
    main = _main(spec, container)
    if main is None:
        return needs
    read_container(main, needs, starts=starts, default_image=default_image)
    _volumes(spec, main, needs)
    if not template.log.local:
        _placement(spec, needs)
        _pod_keys(spec, main, needs)
    needs.grace = spec.whole("terminationGracePeriodSeconds", 0, 86_400)
    return needs


def read_patch(spec: ForeignReader, needs: PodNeeds) -> None:
    """Change the needs by a part of a pod's spec, as a patch of a runtime does."""
    for container in spec.entries("containers"):
        if container.value("name") in (None, "node"):
            _environment(container, needs)
            _volumes(spec, container, needs)
            if container.value("resources") is not None:
                _resources(container, container.at("resources"), needs)
            for key in ("command", "args"):
                if container.value(key) is not None:
                    container.refuse(
                        key, "a patch cannot change the command; write it in the trainer"
                    )
        else:
            said = "a container beside the one that trains is not supported; remove it"
            container.log.refuse(container.line, container.shown, said)
    if not spec.log.local:
        _placement(spec, needs)
    grace = spec.whole("terminationGracePeriodSeconds", 0, 86_400)
    needs.grace = needs.grace if grace is None else grace


def read_container(
    main: ForeignReader,
    needs: PodNeeds,
    resources: str = "resources",
    starts: bool = True,
    default_image: bool = False,
) -> None:
    """Image, variables, command and resources of a container; `resources` is the key of the last.

    Without `starts` it may have no command. With `default_image` it may have no image.
    """
    image = main.text("image")
    if image is None and not main.log.local and not default_image:
        main.refuse("image", "is required: the container image")
    elif image is None or main.log.local:
        pass
    elif names := unfilled_in(image):
        main.refuse("image", f"has no value for ${names[0]}; add --set {names[0]}=VALUE")
    else:
        needs.image = image
        main.log.came_from(main.line_of("image"), "image")
    _environment(main, needs)
    _command(main, needs, starts)
    _resources(main, main.at(resources), needs)


def _main(spec: ForeignReader, name: str | None) -> ForeignReader | None:
    containers = spec.entries("containers")
    named = [one for one in containers if name is not None and one.value("name") == name]
    if not named and len(containers) == 1:
        named = containers
    if not named:
        said = f"needs a container with the name {name}" if name else "needs exactly one container"
        spec.refuse("containers", said)
        return None
    for other in containers:
        if other is not named[0] and spec.log.local:
            said = "a container beside the one that trains: left out"
            spec.log.note(other.line, other.shown, KeyAction.DROPPED, said)
    return named[0]


def _pod_keys(spec: ForeignReader, main: ForeignReader, needs: PodNeeds) -> None:
    """The keys of pods beside the container that trains."""
    inits = spec.entries("initContainers")
    beside = [one for one in spec.entries("containers") if one.path != main.path]
    beside += [one for one in inits if one.value("restartPolicy") == "Always"]
    for one in beside:
        spec.log.note(one.line, one.shown, KeyAction.MAPPED, "kubernetes.sidecars")
        needs.add("sidecars", [read_side(one)])
    for one in inits:
        if one.value("restartPolicy") != "Always":
            needs.add("init", [read_side(one)])
    account = spec.text("serviceAccountName") or spec.text("serviceAccount")
    for key, value in (
        ("service_account", account),
        ("runtime_class", spec.text("runtimeClassName")),
    ):
        if value:
            needs.kubernetes[key] = value
    for one in spec.entries("imagePullSecrets"):
        needs.add("image_pull_secrets", [one.text("name")])
    if spec.value("hostNetwork") is True:
        needs.kubernetes["host_network"] = True


def _environment(main: ForeignReader, needs: PodNeeds) -> None:
    for one in main.entries("env"):
        name = one.text("name")
        if name is None:
            one.refuse("name", "is required: the name of a variable")
        elif name in OURS or name.startswith(OUR_PREFIXES):
            said = "Phalanx sets this variable for every rank"
            one.log.note(one.line, f"{one.shown} ({name})", KeyAction.DROPPED, said)
        elif one.value("valueFrom") is not None:
            _value_from(one, name, needs)
        else:
            value = one.value("value")
            if isinstance(value, bool | dict | list | float) or (
                isinstance(value, int) and abs(value) > 10**18
            ):
                one.refuse("value", "must be text; put it in quotes")
                continue
            text = _expanded("" if value is None else str(value), needs.env)
            if missing := unfilled_in(text):
                said = f"has no value for ${missing[0]}; add --set {missing[0]}=VALUE"
                one.refuse("value", f"{name} {said}")
            needs.env[name] = text


def _value_from(one: ForeignReader, name: str, needs: PodNeeds) -> None:
    source = one.at("valueFrom")
    if one.log.local:
        said = "is not set: --local leaves out values of the cluster"
        one.log.note(one.line_of("valueFrom"), f"{one.shown} ({name})", KeyAction.DROPPED, said)
    elif source.value("secretKeyRef") is not None:
        needs.secrets.append(name)
        said = f"secrets: store its value with `phalanx secrets set {name}`"
        one.log.note(one.line_of("valueFrom"), f"{one.shown} ({name})", KeyAction.MAPPED, said)
    else:
        one.refuse("valueFrom", f"{name}: values of the pod are not supported; write the value")


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """A text with `$(NAME)` filled in, as Kubernetes does."""
    return _REFERENCE.sub(lambda one: env.get(one[1], one[0]), text)


def _command(main: ForeignReader, needs: PodNeeds, starts: bool) -> None:
    words = [*main.words("command"), *main.words("args")]
    if not starts:
        pass
    elif not words:
        main.refuse("command", "is required: the entry point of an image is not known here")
    elif not main.words("command") and _STARTS.fullmatch(words[0]):
        said = "run; the entry point of the image is not used"
        main.note("args", KeyAction.MAPPED, said)
    elif not main.words("command"):
        main.refuse("args", "needs `command`: the entry point of an image is not known here")
    needs.words = [_expanded(one, needs.env) for one in words]
    if words and words[0].rpartition("/")[2] not in ("sh", "bash"):
        for one in needs.words:
            for name in unfilled_in(one)[:1]:
                said = f"has no value for ${name}: no shell reads it; add --set {name}=VALUE"
                main.refuse("args" if main.words("args") else "command", said)


def _resources(main: ForeignReader, section: ForeignReader, needs: PodNeeds) -> None:
    limits, requests = section.mapping("limits"), section.mapping("requests")
    at = section.at("limits") if limits else section.at("requests")
    for name, value in {**limits, **requests}.items():
        amount = _amount(at, name, value)
        if amount is None:
            continue
        if name in GPUS:
            needs.gpus, needs.tpu = math.ceil(amount), name == _TPU
        elif name == "cpu":
            needs.cpus = None if main.log.local else max(math.ceil(amount), 1)
        elif name == "memory":
            needs.memory = None if main.log.local else math.ceil(amount)
        elif main.log.local:
            at.note(name, KeyAction.DROPPED, "left out by --local")
        elif amount != int(amount) or not 1 <= amount <= MAX_WHOLE:
            at.refuse(name, "must be a whole amount such as 1 or 100Gi", value)
        else:
            needs.add("resources", {name: int(amount)})
            at.note(name, KeyAction.MAPPED, f"kubernetes.resources.{name}")


def _amount(at: ForeignReader, name: str, value: Any) -> Any:
    if isinstance(value, str) and (names := unfilled_in(value)):
        at.refuse(name, f"has no value for ${names[0]}; add --set {names[0]}=VALUE")
        return None
    try:
        found = parse_quantity(value) if not isinstance(value, bool | dict | list) else None
    except ValueError:
        found = None
    # A Decimal may be infinite, or have more digits than can be written.
    if found is None or not found.is_finite() or not 0 <= found <= 2**62:
        at.refuse(name, "must be a quantity such as 8 or 64Gi", value)
        return None
    if name in GPUS and (found > 4096 or found != int(found)):
        at.refuse(name, "must be a whole number of at most 4096", value)
        return None
    return found


def _volumes(spec: ForeignReader, main: ForeignReader, needs: PodNeeds) -> None:
    volumes = {one.text("name"): one for one in spec.entries("volumes")}
    for mount in main.entries("volumeMounts"):
        volume, path = volumes.get(mount.text("name")), mount.text("mountPath")
        if mount.log.local:
            continue
        if volume is None or path is None or not path.startswith("/"):
            mount.refuse("name", "must name a volume, with an absolute `mountPath`")
            continue
        _mount(volume, mount, path, needs)


def _mount(volume: ForeignReader, mount: ForeignReader, path: str, needs: PodNeeds) -> None:
    kinds = [one for one in volume.data() if one != "name"]
    kind = kinds[0] if kinds else "emptyDir"
    inner = volume.at(kind)
    mode = ":ro" if mount.value("readOnly") is True else ""
    if path == "/dev/shm" and kind in ("emptyDir", "hostPath"):
        limit = inner.value("sizeLimit") if kind == "emptyDir" else None
        amount = None if limit is None else _amount(inner, "sizeLimit", limit)
        if amount is None:
            said = "shared memory without a limit: that of the node"
            mount.log.note(mount.line, mount.shown, KeyAction.DROPPED, said)
        else:
            needs.shm = math.ceil(amount)
            mount.log.came_from(inner.line, "resources.shm")
        return
    sources = {
        "persistentVolumeClaim": ("pvc", inner.value("claimName")),
        "configMap": ("configmap", inner.value("name")),
        "secret": ("secret", inner.value("secretName")),
        "nfs": ("nfs", f"{inner.value('server')}:{inner.value('path')}"),
        "hostPath": ("hostpath", inner.value("path")),
        "emptyDir": ("emptydir", _limit(inner)),
    }
    word, source = sources.get(kind, ("", None))
    if not isinstance(source, str) or mount.value("subPath") or mount.value("subPathExpr"):
        said = (
            "persistentVolumeClaim, configMap, secret, nfs, hostPath and emptyDir without subPath"
        )
        volume.refuse(kind, f"this volume is not supported; supported: {said}")
        return
    needs.mounts.append(f"{word}:{source}:{path}{mode}" if source else f"{word}:{path}{mode}")
    mount.log.came_from(mount.line, "mounts")


def _limit(inner: ForeignReader) -> str:
    """The size of an emptyDir in bytes as text; empty: no limit."""
    limit = inner.value("sizeLimit")
    amount = None if limit is None else _amount(inner, "sizeLimit", limit)
    return "" if amount is None else str(math.ceil(amount))


def _placement(spec: ForeignReader, needs: PodNeeds) -> None:
    at = spec.at("nodeSelector")
    labels = {key: (at, value) for key, value in spec.mapping("nodeSelector").items()}
    labels |= _affinity(spec.at("affinity").at("nodeAffinity"))
    for key, (where, value) in labels.items():
        if not isinstance(value, str):
            where.refuse(key, "must be text; put it in quotes", value)
        elif key in _GPU_LABELS:
            needs.accelerator = value
            where.note(key, KeyAction.MAPPED, "resources.accelerator")
        elif re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", key):
            needs.selector[key] = value
        else:
            needs.add("node_selector", {key: value})
            where.note(key, KeyAction.MAPPED, "kubernetes.node_selector")
    for one in spec.entries("tolerations"):
        key, value, effect = one.value("key"), one.value("value"), one.value("effect")
        plain = value is None and effect is None
        if not isinstance(key, str) or not key:
            said = "needs a key here: write each taint that the job tolerates"
            one.log.note(one.line, one.shown, KeyAction.DROPPED, said)
        elif plain and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", key):
            needs.tolerate.append(key)
        else:
            told = {"key": key, "value": value, "effect": effect}
            kept = {name: text for name, text in told.items() if text is not None}
            needs.add("tolerations", [kept])


def _affinity(at: ForeignReader) -> dict[str, tuple[ForeignReader, Any]]:
    """Labels of a required node affinity with one value each."""
    if at.value("preferredDuringSchedulingIgnoredDuringExecution") is not None:
        at.note(
            "preferredDuringSchedulingIgnoredDuringExecution", KeyAction.DROPPED, "is a wish only"
        )
    found: dict[str, tuple[ForeignReader, Any]] = {}
    terms = at.at("requiredDuringSchedulingIgnoredDuringExecution").entries("nodeSelectorTerms")
    for term in terms:
        expressions = term.entries("matchExpressions")
        if len(terms) > 1 or term.value("matchFields") is not None:
            term.log.refuse(term.line, term.shown, "only one term of matchExpressions is supported")
        for one in expressions:
            key, values = one.value("key"), one.value("values")
            single = isinstance(values, list) and len(values) == 1 and one.value("operator") == "In"
            if not isinstance(key, str) or not isinstance(values, list) or not single:
                one.log.refuse(one.line, one.shown, "only `In` with one value is supported")
            else:
                found[key] = (one, values[0])
    return found
