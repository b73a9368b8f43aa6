"""The process of one local rank: its files, its output pipes and its exit."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from phalanx.core.contract.secrecy import OutputMask
from phalanx.core.contract.trial import TARGET_SUFFIX
from phalanx.core.gang import stacks
from phalanx.core.gang.collectives import ASK_SUFFIX
from phalanx.core.gang.failures import RankExit, rank_exit
from phalanx.core.telemetry import profiles
from phalanx.core.training.control import SAVE_SUFFIX
from phalanx.launch import linux
from phalanx.launch.capture import Capture, open_append, read_available
from phalanx.launch.space import TrimmedFile
from phalanx.schemas.wire.supervision import ProfileOrder
from phalanx.supervise.eventloop import EventLoop
from phalanx.supervise.processes import ProcessObserver

_LOG = logging.getLogger(__name__)
_MAX_READS = 64
LOG_KEPT_BYTES = 64 << 20
STREAMS = ("out", "err")


class RankObserver(Protocol):
    """The generation that a rank belongs to."""

    def rank_started(self, rank: LocalRank) -> None:
        """It runs."""

    def rank_refused(self, rank: LocalRank, message: str, *, missing: bool) -> None:
        """It could not be started."""

    def rank_exited(self, rank: LocalRank) -> None:
        """It is gone; `rank.exit` says how."""


@dataclass(slots=True)
class Stream:
    """One output stream of one rank: read from a pipe, stored in a file and shipped."""

    rank: int  # global rank
    name: str  # `out` or `err`
    path: Path  # the output file
    capture: Capture  # writes the file
    file: int  # descriptor of the file at `path`
    pipe: int | None = None  # descriptor to read from; None when it was closed
    listener: Callable[[bytes], None] | None = None  # receives the bytes, too
    mask: OutputMask = OutputMask()  # what is shipped has no values of secrets
    num_sent: int = 0  # bytes that were shipped, or passed over
    passed_at: int | None = None  # where bytes were first passed over: they are only in the file
    closed: bool = False  # nothing more is read
    ended: bool = False  # its end was reported
    trimmed: TrimmedFile = field(default_factory=TrimmedFile)  # start of the file removed

    def trim(self) -> None:
        """Free the disk space of what was shipped, except of the last `LOG_KEPT_BYTES` of the file."""
        sent = self.num_sent if self.passed_at is None else self.passed_at
        end = min(sent, self.capture.num_written - LOG_KEPT_BYTES)
        if end - self.trimmed.begin >= LOG_KEPT_BYTES // 4:
            self.trimmed.up_to(self.path, end)

    def open_pipe(self, loop: EventLoop) -> int:
        """Read from a new pipe from now on; returns the end that a child writes to. Raises OSError."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        self.pipe = read
        loop.watch(read, lambda: self.take_some(loop))
        return write

    def drain(self, loop: EventLoop) -> None:
        """Take what can be read now; closes the pipe at its end.

        Bounded: a worker that outlives its rank for a moment may print without end, and what the
        rank itself left fits the pipe.
        """
        for _ in range(_MAX_READS):
            if not self.take_some(loop):
                return

    def take_some(self, loop: EventLoop) -> bool:
        """One read, so that a rank that prints without end does not keep the loop busy.

        Returns whether there was something to read.
        """
        if self.pipe is None:
            return False
        data, over = read_available(self.pipe)
        if data:
            self.capture.take(data)
            if self.listener is not None:
                self.listener(data)
        elif over:
            self.close_pipe(loop)
        return bool(data)

    def close_pipe(self, loop: EventLoop) -> None:
        """Stop reading, although another process may still hold the other end."""
        if self.pipe is not None:
            loop.forget(self.pipe)
            os.close(self.pipe)
            self.pipe = None

    @property
    def backlog(self) -> int:
        """Bytes of the file that were not shipped yet."""
        return self.capture.num_written - self.num_sent

    def pass_over(self, end: int) -> None:
        """Do not ship the bytes before `end`; they stay in the file."""
        if end > self.num_sent:
            self.passed_at = self.num_sent if self.passed_at is None else self.passed_at
            self.num_sent = end

    def take_loss(self) -> int:
        """Bytes that were lost just before the next one to ship; they are returned once."""
        lost = 0
        while self.capture.losses and self.capture.losses[0][0] <= self.num_sent:
            lost += self.capture.losses.popleft()[1]
        return lost

    def read_back(self, limit: int) -> bytes:
        """Bytes of the file that were not shipped yet, up to `limit` and to the next place with a loss."""
        size = min(limit, self.backlog)
        if self.capture.losses:
            size = min(size, self.capture.losses[0][0] - self.num_sent)
        if size <= 0:
            return b""
        try:
            with open(self.path, "rb") as file:
                return self.mask.read(file, self.num_sent, size, grows=not self.closed)
        except OSError:
            return b""


@dataclass(slots=True)
class LocalRank(ProcessObserver):
    """The process of one rank of the current generation on this node."""

    rank: int  # global rank
    folder: Path  # files of the generation
    loop: EventLoop  # reads its pipes
    observer: RankObserver  # receives its exit
    mask: OutputMask = OutputMask()  # of the values of its secrets
    pid: int | None = None  # None: not started
    warm: bool = False  # it was forked from the warm process
    exit: RankExit | None = None  # None while it runs
    refused_: bool = False  # it could not be started
    asked: bool = False  # its start was requested
    streams: list[Stream] = field(default_factory=list)  # captured output
    env: Mapping[str, str] = field(default_factory=dict)  # its environment, once it was started

    @property
    def stem(self) -> str:
        """The beginning of the names of its files."""
        return f"r{self.rank:05d}"

    @property
    def report_file(self) -> Path:
        """The file through which the rank reports."""
        return self.folder / f"{self.stem}.report"

    @property
    def stacks_file(self) -> Path:
        """The file for its stacks, written on request."""
        return self.report_file.with_suffix(stacks.SUFFIX)

    @property
    def profile_file(self) -> Path:
        """The file with requests to profile its gang."""
        return self.report_file.with_suffix(profiles.SUFFIX)

    @property
    def error_file(self) -> Path:
        """The file for an uncaught exception."""
        return self.folder / f"{self.stem}.error.json"

    def open_pipes(self) -> tuple[int, int, int]:
        """Descriptors 0, 1, 2 for the child, captured. Raises OSError."""
        self.asked = True
        out, err = self._captured()
        stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return stdin, out.open_pipe(self.loop), err.open_pipe(self.loop)

    @property
    def output_descriptors(self) -> list[int]:
        """The open pipes of its output, each followed by its file."""
        pairs = ((one.pipe, one.file) for one in self.streams if one.pipe is not None)
        return [number for pair in pairs for number in pair]

    def open_prelude(self) -> tuple[int, int, int]:
        """Open descriptors for a child that runs before the rank and prints into its error stream."""
        _, err = self._captured()
        stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        write = err.open_pipe(self.loop)
        return stdin, write, write

    def close_prelude(self) -> None:
        """Close them: that child has ended, and its output is not the rank's."""
        for stream in self.streams:
            stream.drain(self.loop)
            stream.close_pipe(self.loop)
            stream.capture.tail.clear()

    def _captured(self) -> list[Stream]:
        if not self.streams:
            for name in STREAMS:
                path = self.folder / f"{self.stem}.{name}"
                descriptor, append = open_append(path)
                stream = Stream(self.rank, name, path, Capture(append), descriptor, mask=self.mask)
                self.streams.append(stream)
        return self.streams

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.pid is not None and self.exit is None

    @property
    def settled(self) -> bool:
        """Whether it has ended or was never started."""
        return self.exit is not None or self.refused_

    def started(self, pid: int, *, warm: bool) -> None:
        """See `ProcessObserver`."""
        self.pid, self.warm = pid, warm
        self.observer.rank_started(self)

    def refused(self, message: str, *, missing: bool) -> None:
        """See `ProcessObserver`."""
        self.refused_ = True
        self.observer.rank_refused(self, message, missing=missing)

    def exited(self, status: int, at: int) -> None:
        """See `ProcessObserver`. What it printed last is read before its end is judged."""
        for stream in self.streams:
            stream.drain(self.loop)
        error = None
        with contextlib.suppress(OSError):
            error = self.mask.hide(self.error_file.read_bytes()).decode(errors="replace")
        stderr = self.mask.hide(bytes(self.streams[1].capture.tail)) if self.streams else b""
        self.exit = rank_exit(self.rank, os.waitstatus_to_exitcode(status), at, error, stderr)
        self.observer.rank_exited(self)

    def terminate(self) -> list[int]:
        """SIGTERM to the rank; returns descriptors that turn readable when the signalled have ended.

        Data workers must not get it: they would die and take the rank's own save with them. But a
        shell does not pass a signal on, so the children of a program that is not Python get it, too.
        """
        if not self.running or self.pid is None:
            return []
        handles: list[int] = []
        todo = [self.pid]
        while todo:
            pid = todo.pop()
            with contextlib.suppress(OSError):
                if not linux.executable(pid).startswith(("python", "pypy")):
                    todo.extend(linux.children(pid))
                handle = os.pidfd_open(pid)
                handles.append(handle)
                signal.pidfd_send_signal(handle, signal.SIGTERM)
        return handles

    def make_question_pipe(self) -> None:
        """Make the pipe through which the rank can be asked for its collectives."""
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.report_file.with_suffix(ASK_SUFFIX), 0o600)

    def request_profile(self, order: ProfileOrder) -> None:
        """Write the newest request for a profile where the rank looks for it; may be repeated."""
        self._tell(self.profile_file, json.dumps(order.model_dump()))

    def request_save(self, number: int) -> None:
        """Write the number of the newest save request, if any, where the rank looks for it."""
        if number:
            self._tell(self.report_file.with_suffix(SAVE_SUFFIX), str(number))

    def raise_target(self, until: int) -> None:
        """Write the trial's target where the rank looks for it; may be repeated."""
        self._tell(self.report_file.with_suffix(TARGET_SUFFIX), str(until))

    @staticmethod
    def _tell(file: Path, text: str) -> None:
        """Replace a file that the rank reads, if its text differs."""
        try:
            if not (file.exists() and file.read_text() == text):
                fresh = file.with_name(file.name + ".new")
                fresh.write_text(text)
                os.replace(fresh, file)
        except OSError as error:
            _LOG.warning("a request cannot be written for the rank: %s: %s", file, error)

    def close(self) -> None:
        """Read what the pipes hold and close everything, without waiting for end-of-file."""
        for stream in self.streams:
            stream.drain(self.loop)
            stream.close_pipe(self.loop)
            os.close(stream.file)
            stream.closed = True
