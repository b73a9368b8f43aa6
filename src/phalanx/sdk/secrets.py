"""The routes about secrets."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from phalanx.schemas.api.credentials import RotatedKey, SecretView, SetSecretRequest
from phalanx.sdk.transport import V1, Transport


class SecretCalls(Transport):
    """One method for each route about secrets; `client.secrets`, on the connection of the client.

    `project` None: the secrets of the whole platform, which jobs of every project can name.
    """

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def list(self, project: str | None = "default") -> list[SecretView]:
        """The secrets that jobs of a project can name, without values."""
        return self._get(_path(project), list[SecretView])

    def show(self, name: str, project: str | None = "default") -> SecretView:
        """One secret of this project alone, without its value. Raises NotFound."""
        return self._get(f"{_path(project)}/{quote(name, safe='')}", SecretView)

    def set(self, name: str, value: str, project: str | None = "default") -> SecretView:
        """Store a secret in the place of an earlier value. Raises UserError, TooLarge."""
        body = SetSecretRequest(value=value)
        return self._put(f"{_path(project)}/{quote(name, safe='')}", body, SecretView)

    def refer(self, name: str, source: str, project: str | None = "default") -> SecretView:
        """Have a secret read from a secret manager, such as `vault:phalanx/vision/hub#token`.

        Raises UserError, SecretRefused, SecretManagerUnavailable.
        """
        body = SetSecretRequest(source=source)
        return self._put(f"{_path(project)}/{quote(name, safe='')}", body, SecretView)

    def remove(self, name: str, project: str | None = "default") -> None:
        """Remove a secret. Raises NotFound."""
        self._delete(f"{_path(project)}/{quote(name, safe='')}")

    def rotate_key(self) -> int:
        """Replace the master key; returns the number of secrets. Raises PermissionDenied."""
        return self._post(f"{V1}/secrets/rotate-key", None, RotatedKey).count


def _path(project: str | None) -> str:
    return (
        f"{V1}/secrets" if project is None else f"{V1}/projects/{quote(project, safe='')}/secrets"
    )
