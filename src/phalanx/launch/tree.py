"""The supervisor's side of its process tree: the reaper, the warm process, and what they start."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.kit.interpreter import own_python
from phalanx.launch.wire import Channel, pair

_SOURCE = str(Path(__file__).resolve().parents[2])
# The reaper is to start in milliseconds and to depend on nothing: no site packages, no environment.
_REAPER = f"import sys; sys.path.insert(0, {_SOURCE!r}); from phalanx.launch.reaper import main; main(int(sys.argv[1]))"  # noqa: E501
# Even, and below `wire.MAX_DESCRIPTORS`.
_MOST_KEPT = 8
FORK_SERVER_MODULE = "phalanx.train.warm_process.fork_server"


@dataclass(slots=True)
class ReaperProcess:
    """The reaper as its supervisor sees it. Requests are numbered; answers come as messages."""

    pid: int
    channel: Channel
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    #: of one that was started as a program: an object that is collected early would complain
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, tag_env: Mapping[str, str]) -> ReaperProcess:
        """Start it, in a session of its own."""
        ours, theirs = pair()
        with theirs:
            argv = own_python("-I", "-S", "-c", _REAPER, str(theirs.fileno()))
            process = subprocess.Popen(
                argv,
                env=dict(tag_env),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return cls(process.pid, ours, process=process)

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        descriptors: Sequence[int],
        *,
        spare: bool = False,
    ) -> int:
        """Request the start of a program; answered by `spawned` or `refused` and, in the end, `exited`.

        `kill` does not kill a program that was started with `spare`.
        """
        body = {"op": "spawn", "argv": list(argv), "env": dict(env), "cwd": cwd, "spare": spare}
        return self._ask(body, descriptors)

    def kill(self) -> int:
        """Request a kill of all processes that are not spared; answered by `killed` when all are gone."""
        return self._ask({"op": "kill"}, ())

    def keep(self, descriptors: Sequence[int]) -> None:
        """Have it save what pipes hold should the supervisor die: reading ends and files, in turns."""
        for start in range(0, len(descriptors), _MOST_KEPT):
            self._ask({"op": "keep"}, descriptors[start : start + _MOST_KEPT])

    def forget(self) -> None:
        """Have it close the descriptors of all earlier calls of `keep`."""
        self._ask({"op": "forget"}, ())

    def limit(self, cpus: int, memory_bytes: int) -> int:
        """Request limits on what all programs use together; answered by `limited`."""
        return self._ask({"op": "limit", "cpus": cpus, "memory_bytes": memory_bytes}, ())

    def _ask(self, body: dict[str, Any], descriptors: Sequence[int]) -> int:
        body["id"] = next(self.ids)
        self.channel.send(body, descriptors)
        return int(body["id"])


@dataclass(slots=True)
class WarmProcess:
    """The warm process as its supervisor sees it: it forks ranks.

    `pid` is None until the reaper has reported it.
    """

    channel: Channel
    request: int
    python: str
    sensitive_env: Mapping[str, str]
    pid: int | None = None

    @classmethod
    def start(  # noqa: PLR0913
        cls,
        reaper: ReaperProcess,
        *,
        python: str,
        unbuffered: bool,
        imports: Sequence[str],
        env: Mapping[str, str],
        sensitive_env: Mapping[str, str],
        cwd: str,
        stdio: tuple[int, int, int],
    ) -> WarmProcess:
        """Have the reaper start it. It runs `python -m phalanx.train.warm_process.fork_server`, by name."""
        ours, theirs = pair()
        argv = [python, *(["-u"] if unbuffered else []), "-m", FORK_SERVER_MODULE, *imports]
        with theirs:
            request = reaper.spawn(argv, env, cwd, [*stdio, theirs.fileno()], spare=True)
        return cls(ours, request, python, sensitive_env)

    def preload(self, imports: Sequence[str]) -> None:
        """Request further imports; they are done before the next fork."""
        self.channel.send({"op": "import", "modules": list(imports)})

    def fork(self, body: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Request the fork of one rank; answered by `forked` or `refused`, in order, and `exited`."""
        self.channel.send({"op": "fork", **body}, descriptors)
