"""The context of one verb: the invocation, the chosen control plane, and a client for it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from phalanx.cli.client import embedded, logins
from phalanx.cli.client.invocation import Invocation
from phalanx.cli.terminal.output import note
from phalanx.errors import NotFound, PlatformError, ServerUnavailable, UserError
from phalanx.kit.clock import SystemClock
from phalanx.kit.text import parse_job_label
from phalanx.launch.tls.trust import read_ca

if TYPE_CHECKING:
    from phalanx.sdk import PhalanxClient

_TRIES = 3
_ARRAY = re.compile(r"a-([0-9]{1,15})(?:_([0-9]{1,9}))?")


@dataclass(slots=True)
class Session:
    """One invocation of the command line.

    Without `url` it uses the control plane of `home`, and starts one when none runs.
    """

    invocation: Invocation
    home: Path
    url: str | None = None
    token: str | None = None
    ca_file: Path | None = None
    starting: embedded.ServerAddress | embedded.StartingServer | None = None

    def begin(self, num_slots: int | None = None) -> None:
        """Start the control plane of `home` if none runs, without waiting for it."""
        if self.url is None and self.starting is None:
            self.starting = embedded.begin(self.home, num_slots)

    def connect(self) -> PhalanxClient:
        """Connect to a control plane that answers.

        Raises ServerUnavailable or ServerError when there is none and none can be started.
        """
        from phalanx.sdk import PhalanxClient

        if self.url is not None:
            ca = "" if self.ca_file is None else read_ca(self.invocation.cwd / self.ca_file)
            client = PhalanxClient(self.url, self._remote_token(), ca=ca)
            client.hello()
            return client
        for last in (False,) * (_TRIES - 1) + (True,):
            pending, self.starting = self.starting or embedded.begin(self.home), None
            where = (
                pending.finish(note) if isinstance(pending, embedded.StartingServer) else pending
            )
            client = PhalanxClient(where.url, where.token, socket=where.socket, ca=where.ca)
            try:
                client.hello()
            except ServerUnavailable:
                # The idle server may have exited between `begin` and this request.
                client.close()
                if last:
                    raise
                continue
            return client
        raise ServerUnavailable(f"the control plane of {self.home} does not answer")

    def _remote_token(self) -> str:
        if self.token:
            return self.token
        assert self.url is not None
        found = logins.find(self.invocation, self.url)
        if found is not None and found.expires_at.timestamp() * 1e6 > SystemClock().now():
            return found.token
        said = "--url needs a token" if found is None else f"the login at {self.url} has expired"
        raise UserError(said, "run `phalanx login`, give --token or set PHALANX_TOKEN")

    def is_logged_in(self) -> bool:
        """Whether the token of this invocation is that of a login."""
        stored = self.url is not None and logins.find(self.invocation, self.url)
        return bool(stored) and not self.token

    @contextlib.contextmanager
    def client(self) -> Iterator[PhalanxClient]:
        """`connect` as a context that closes the client."""
        client = self.connect()
        try:
            yield client
        finally:
            client.close()


def connected(ctx: typer.Context) -> contextlib.AbstractContextManager[PhalanxClient]:
    """A client of the control plane of this invocation, closed at the end of the context."""
    session: Session = ctx.obj
    return session.client()


def job_number(text: str) -> int:
    """The number in `j-12` or `12`. Raises NotFound for anything else."""
    num = parse_job_label(text)
    if num is None:
        raise NotFound(
            f"{text!r} is not a job", "give its number, such as j-12; `phalanx ps` lists jobs"
        )
    return num


def job_numbers(client: PhalanxClient, names: Sequence[str]) -> list[int]:
    """The jobs that these names mean: `j-12`, an array such as `a-12`, or its element `a-12_7`.

    Later elements of an array come first, so that to stop them in this order starts none that waits.
    Raises NotFound.
    """
    found: list[int] = []
    for name in names:
        match = _ARRAY.fullmatch(name.strip())
        if match is None:
            found.append(job_number(name))
            continue
        page = client.jobs(array=int(match[1]), archived="include", limit=1000)
        nums = [one.num for one in page.jobs if match[2] in (None, str(one.array_index))]
        if not nums:
            raise NotFound(f"there is no array or element {name}", "`phalanx ps -a` lists all jobs")
        found += nums
    return found


def one_job(client: PhalanxClient, name: str) -> int:
    """The one job that a name means, an element `a-12_7` included. Raises NotFound, UserError."""
    found = job_numbers(client, [name])
    if len(found) > 1:
        raise UserError(f"{name} has {len(found)} elements", f"name one of them, such as {name}_0")
    return found[0]


def describe(error: PlatformError) -> str:
    """Format an error for the terminal."""
    problems = getattr(error, "problems", ())
    lines = [str(one) for one in problems] or error.message.splitlines() or [error.code]
    if error.hint:
        lines.append(error.hint)
    return "phalanx: " + "\n  ".join(lines)
