"""The values of a job's secrets, for the supervisor that is about to start its ranks.

The control plane is asked with the token of the supervisor. Where the job names no stored secret, and
its own secret variables are in a file that this machine has, the file is read. The values stay in this
process's memory: they are in no argument, no file and no message, and nothing of Ray carries them.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phalanx.errors import NotFound
from phalanx.launch import secret_files
from phalanx.launch.tls import trust

_TRY_FOR_S = 20.0
_TIMEOUT_S = 5.0
_AGAIN_S = 0.25
_MAX_BYTES = 16 << 20


def secret_values(
    data: Mapping[str, Any], wait: Callable[[float], None] = time.sleep
) -> dict[str, str]:
    """The values of the secrets that an assignment names. Raises NotFound with what is missing.

    A control plane that does not answer, for example because it restarts, is asked again for a while.
    """
    named, own = data.get("secrets") or [], data.get("own_secrets") or {}
    file = data.get("own_secrets_file")
    if not named and (file is not None or not own):
        return secret_files.read_own(Path(file), own) if file is not None else {}
    until = time.monotonic() + _TRY_FOR_S
    while True:
        try:
            found = _ask(data)
            break
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > until:
                raise NotFound(
                    f"the secrets cannot be read from {data['server_url']}: "
                    f"{trust.told(error, data['server_url'])}",
                    "check the pool's server_url: the nodes must reach the control plane there",
                ) from error
        wait(_AGAIN_S)
    wanted = [*own, *named]
    missing = [name for name in wanted if not isinstance(found.get(name), str)]
    if missing:
        raise NotFound(f"the control plane sent no secret {missing[0]}")
    return {name: str(found[name]) for name in wanted}


def _ask(data: Mapping[str, Any]) -> dict[str, Any]:
    """One request. Raises OSError where it may succeed later, NotFound where it is refused."""
    connection = trust.connection(data["server_url"], data.get("server_ca") or "", _TIMEOUT_S)
    gang = data["gang"]
    path = (
        f"/api/v1/supervisors/secrets?job={gang['job']['num']}&attempt={gang['attempt']}"
        f"&node_rank={data['node_rank']}&incarnation={data.get('incarnation', 0)}"
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {data['token']}"})
        answer = connection.getresponse()
        body = answer.read(_MAX_BYTES)
    finally:
        connection.close()
    if answer.status >= 500:
        raise OSError(f"status {answer.status}")
    if answer.status != 200:
        raise NotFound(f"the control plane refused to send the secrets: {_message(body)}")
    try:
        values = json.loads(body)["values"]
    except (ValueError, KeyError, TypeError) as error:
        # Never quote what arrived: it may hold values.
        raise OSError("the answer is not readable") from error
    if not isinstance(values, dict):
        raise OSError("the answer is not readable")
    return values


def _message(body: bytes) -> str:
    """The message of an error of the control plane; errors never hold values."""
    try:
        return str(json.loads(body).get("message", ""))[:300]
    except (ValueError, AttributeError):
        return "no message"
