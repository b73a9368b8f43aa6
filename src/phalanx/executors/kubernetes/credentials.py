"""Where a cluster's API server is and how this program proves its identity to it."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from phalanx.errors import ServerError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A mounted token is replaced by the kubelet long before it expires.
_TOKEN_AGE_S = 60.0
_MAX_BYTES = 4 << 20


@dataclass(slots=True)
class ClusterAccess:
    """The URL of an API server, the TLS context for it, and the token; tokens of files are read again."""

    url: str
    context: ssl.SSLContext
    token: str = ""  # empty: a certificate, or a file
    token_file: Path | None = None
    read_at: float = -_TOKEN_AGE_S  # when the file was read, on the monotonic clock

    def headers(self) -> dict[str, str]:
        """The headers that authenticate a request. Raises OSError."""
        now = time.monotonic()
        if self.token_file is not None and now - self.read_at >= _TOKEN_AGE_S:
            self.token, self.read_at = self.token_file.read_text().strip(), now
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def in_cluster(
    folder: Path = SERVICE_ACCOUNT, env: Mapping[str, str] | None = None
) -> ClusterAccess:
    """The access of a pod with a service account. Raises ServerError outside a cluster."""
    own = os.environ if env is None else env  # noqa: TID251 - the cluster tells its pods its address
    host, port = own.get("KUBERNETES_SERVICE_HOST"), own.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise ServerError(
            "this machine is no pod with a service account",
            "name a file in the pool's `kubeconfig`",
        )
    host = f"[{host}]" if ":" in host else host
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    return ClusterAccess(f"https://{host}:{port}", context, token_file=folder / "token")


def from_kubeconfig(path: Path, context_name: str | None = None) -> ClusterAccess:
    """The access that a kubeconfig describes. Raises ServerError with the key that is wrong."""
    document = _document(path)
    name = context_name or document.get("current-context")
    if not name:
        raise ServerError(f"{path} has no current-context", "name one in the pool's `context`")
    context = _named(path, document, "contexts", "context", str(name))
    cluster = _named(path, document, "clusters", "cluster", str(context.get("cluster")))
    user: Mapping[str, Any] = {}
    if context.get("user"):
        user = _named(path, document, "users", "user", str(context["user"]))
    for key, hint in _REFUSED.items():
        if user.get(key):
            raise ServerError(f"{path}: `{key}` of user {context['user']} is not supported", hint)
    url = str(cluster.get("server", ""))
    if not url.startswith(("https://", "http://")):
        raise ServerError(f"{path}: cluster {context.get('cluster')} has no `server` URL")
    token_file = user.get("tokenFile")
    return ClusterAccess(
        url.rstrip("/"),
        _tls(path, cluster, user),
        token="" if token_file else str(user.get("token") or ""),
        token_file=None if token_file is None else path.parent / str(token_file),
    )


_REFUSED = {
    "exec": "use a token, a tokenFile or a client certificate, such as that of a service account",
    "auth-provider": "Kubernetes has removed it; use a token, a tokenFile or a client certificate",
    "username": "Kubernetes has removed it; use a token, a tokenFile or a client certificate",
    "as": "give the pool the identity that it is to have",
}


def _document(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            document = yaml.safe_load(file.read(_MAX_BYTES))
    except OSError as error:
        raise ServerError(f"the kubeconfig {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        # The message of the parser may quote a token.
        raise ServerError(f"the kubeconfig {path} is no YAML document") from error
    if not isinstance(document, Mapping):
        raise ServerError(f"the kubeconfig {path} is no mapping")
    return document


def _named(
    path: Path, document: Mapping[str, Any], group: str, key: str, name: str
) -> Mapping[str, Any]:
    for entry in document.get(group) or ():
        if isinstance(entry, Mapping) and entry.get("name") == name:
            found = entry.get(key)
            if isinstance(found, Mapping):
                return found
    raise ServerError(f"{path}: there is no {key} {name}")


def _tls(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        authority = _bytes(path, cluster, "certificate-authority")
        if authority is not None:
            context = ssl.create_default_context(cadata=authority.decode())
        if cluster.get("insecure-skip-tls-verify"):
            raise ServerError(
                f"{path}: `insecure-skip-tls-verify` is not supported",
                "give the cluster its `certificate-authority`",
            )
        certificate, key = (_bytes(path, user, one) for one in ("client-certificate", "client-key"))
        if certificate is not None and key is not None:
            _load(context, certificate, key)
    except (OSError, ValueError) as error:
        said = f"{path}: a certificate or key cannot be read: {type(error).__name__}"
        raise ServerError(said) from error
    return context


def _bytes(path: Path, section: Mapping[str, Any], key: str) -> bytes | None:
    """A value that stands in the file as base64, or in a file that it names."""
    inline, name = section.get(f"{key}-data"), section.get(key)
    if inline:
        try:
            return base64.b64decode(str(inline), validate=True)
        except binascii.Error as error:
            raise ValueError(f"{key}-data") from error
    return None if not name else (path.parent / str(name)).read_bytes()


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # The ssl module takes client certificates from files only; the file is of this user and is deleted.
    with tempfile.NamedTemporaryFile(prefix="phalanx-", suffix=".pem") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)
