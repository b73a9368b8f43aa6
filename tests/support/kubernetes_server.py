"""A real Kubernetes API server with its etcd, for tests; both listen on loopback alone.

The programs are those that the variable KUBEBUILDER_ASSETS names, as in the tests of other controllers:
`kube-apiserver`, `etcd` and `kubectl`. There is no scheduler, kubelet or controller: `ProcessKubelet` and
`collect_garbage` do their part.
"""

import contextlib
import os
import secrets
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from phalanx.executors.kubernetes.client import KubernetesClient, KubernetesRefused
from phalanx.executors.kubernetes.credentials import from_kubeconfig
from phalanx.launch.ports import free_port
from support.waiting import wait_until

PROGRAMS = ("kube-apiserver", "etcd", "kubectl")
VARIABLE = "KUBEBUILDER_ASSETS"
# What `deploy/kubernetes/base/rbac.yaml` grants to the control plane's service account.
SHIPPED_USER = "system:serviceaccount:phalanx-system:phalanx"
# And `deploy/kubernetes/operator/rbac.yaml` to the operator's.
OPERATOR_USER = "system:serviceaccount:phalanx-system:phalanx-operator"
# The CustomResourceDefinitions of other projects lie beside the checkouts of some machines.
_FOLDERS = [one / "shared" / "crds" for one in Path(__file__).parents]
DEFINITIONS = next((one for one in _FOLDERS if one.is_dir()), Path("crds"))
_DEFINED = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_COLLECTED = [
    *(f"/api/v1/namespaces/{{}}/{one}" for one in ("pods", "secrets", "configmaps", "services")),
    "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads",
]


def missing():
    """Why no API server can be started here; empty: one can."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return f"{VARIABLE} names no folder with {', '.join(PROGRAMS)}"
    lacking = [one for one in PROGRAMS if not (Path(folder) / one).exists()]
    return f"{folder} has no {', '.join(lacking)}" if lacking else ""


class KubernetesServer:
    """An API server. `admin` may do everything; `kubeconfig` writes the access of another user."""

    def __init__(self, root):
        self.root = root
        self.programs = Path(os.environ[VARIABLE])
        users = ("admin", SHIPPED_USER, OPERATOR_USER)
        self._tokens = {name: secrets.token_hex(16) for name in users}
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self._port = free_port()
        self._etcd = self._api = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def kubeconfig(self, path, user="admin"):
        """Write the access of a user to a file."""
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": str(self.root / "certificates" / "apiserver.crt"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": self._tokens[user]}}],
        }
        path.write_text(yaml.safe_dump(document))
        path.chmod(0o600)
        return path

    def apply(self, manifests):
        """Create the objects of a manifest."""
        # The server checks fields as well; kubectl would first need its whole OpenAPI document.
        argv = ["--kubeconfig", self.root / "admin", "apply", "--validate=false", "-f", "-"]
        done = subprocess.run(
            [self.programs / "kubectl", *argv],
            input=manifests,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    def start_api(self):
        """Start the API server and wait until it answers."""
        given = {
            "etcd-servers": self._etcd_url,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "secure-port": self._port,
            "cert-dir": self.root / "certificates",
            "token-auth-file": self.root / "tokens.csv",
            "authorization-mode": "RBAC",
            "anonymous-auth": "false",
            "service-account-issuer": "https://tests.invalid",
            "service-account-key-file": self.root / "service-accounts.key",
            "service-account-signing-key-file": self.root / "service-accounts.key",
            "service-cluster-ip-range": "10.0.0.0/24",
            # No controller creates the default accounts, or removes the taint of new nodes.
            "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
            # Watches end often.
            "min-request-timeout": 60,
        }
        self._api = self._run("kube-apiserver", [f"--{k}={v}" for k, v in given.items()])
        wait_until(self._is_ready, "the API server")

    def kill(self):
        """Kill the API server; etcd keeps what is stored."""
        self._api.kill()
        self._api.wait()

    def compact(self):
        """Let etcd forget all old versions, so that every watch has to begin with a list."""
        client = KubernetesClient(from_kubeconfig(self.root / "admin"))
        version = client.list("/api/v1/namespaces").version
        client.close()
        body = {"revision": version, "physical": True}
        answer = httpx.post(f"{self._etcd_url}/v3/kv/compaction", json=body, trust_env=False)
        assert answer.status_code == 200, answer.text

    def close(self):
        """End both programs."""
        for one in (self._api, self._etcd):
            if one is not None:
                one.kill()
                one.wait()

    def _start(self):
        peer = f"http://127.0.0.1:{free_port()}"
        etcd = [
            *("--data-dir", self.root / "etcd", "--listen-client-urls", self._etcd_url),
            *("--advertise-client-urls", self._etcd_url, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
            # Nothing of a test has to survive a power failure.
            "--unsafe-no-fsync",
        ]
        self._etcd = self._run("etcd", etcd)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        signing = self.root / "service-accounts.key"
        signing.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        tokens = self.root / "tokens.csv"
        groups = dict.fromkeys(self._tokens, '"system:serviceaccounts,system:authenticated"')
        groups["admin"] = "system:masters"
        tokens.write_text(
            "".join(
                f"{token},{name},{name},{groups[name]}\n" for name, token in self._tokens.items()
            )
        )
        tokens.chmod(0o600)
        self.start_api()
        self.kubeconfig(self.root / "admin")

    def _run(self, program, args):
        with open(self.root / f"{program}.log", "ab") as log:
            return subprocess.Popen(
                [self.programs / program, *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,
            )

    def _is_ready(self):
        for one in (self._etcd, self._api):
            assert one.poll() is None, (self.root / f"{Path(one.args[0]).name}.log").read_text()[
                -2000:
            ]
        made = self.root / "certificates" / "apiserver.crt"
        if not made.exists():
            return False
        try:
            answer = httpx.get(
                f"https://127.0.0.1:{self._port}/readyz",
                headers={"Authorization": f"Bearer {self._tokens['admin']}"},
                verify=ssl.create_default_context(cafile=str(made)),
                trust_env=False,
            )
        except (httpx.HTTPError, ssl.SSLError):
            return False
        return answer.status_code == 200


def install(client, body):
    """Let an API server have the kind of a CustomResourceDefinition; it may have it already."""
    try:
        client.call("POST", _DEFINED, body)
    except KubernetesRefused as refused:
        if refused.reason != "AlreadyExists":
            raise

    def serves():
        found = client.get(f"{_DEFINED}/{body['metadata']['name']}") or {}
        told = found.get("status", {}).get("conditions") or ()
        return any(one["type"] == "Established" and one["status"] == "True" for one in told)

    wait_until(serves, f"the kind {body['metadata']['name']}")
    spec = body["spec"]
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
    # It is served a moment after that was told.
    wait_until(lambda: client.get(path) is not None, f"objects at {path}")
    return path


def remove_definition(client, name):
    """Remove a kind, with all of its objects."""
    with contextlib.suppress(KubernetesRefused):
        client.call("DELETE", f"{_DEFINED}/{name}")
    wait_until(lambda: client.get(f"{_DEFINED}/{name}") is None, f"the end of the kind {name}", 60)


def definition(name):
    """The CustomResourceDefinition of another project in a file below `DEFINITIONS`, or skip."""
    file = DEFINITIONS / name
    if not file.exists():
        pytest.skip(f"there is no {file}")
    return yaml.safe_load(file.read_text())


def collect_garbage(client, namespace):
    """Delete the objects of a namespace that only objects which no longer exist own; one round."""
    found = {}
    for path in (one.format(namespace) for one in _COLLECTED):
        try:
            found[path] = client.list(path).items
        except KubernetesRefused as refused:
            if refused.status != 404:  # a cluster without this kind
                raise
    uids = {one["metadata"]["uid"] for items in found.values() for one in items}
    for path, items in found.items():
        for one in items:
            owners = one["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in uids for owner in owners):
                own = f"{path}/{one['metadata']['name']}"
                with contextlib.suppress(KubernetesRefused):
                    client.call("DELETE", own, {"preconditions": {"uid": one["metadata"]["uid"]}})
