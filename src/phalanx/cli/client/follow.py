"""Follow a job: show its states, its ranks' output, its progress and its end."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from phalanx.cli.exits import INTERRUPTED, code_of
from phalanx.cli.terminal.options import one_rank
from phalanx.cli.terminal.output import lasted, notice
from phalanx.cli.terminal.screen import Screen, screen_for
from phalanx.errors import PlatformError, ServerError, ServerUnavailable
from phalanx.kit.clock import backoff_s

if TYPE_CHECKING:
    from phalanx.cli.client.session import Session
    from phalanx.schemas.api.jobs import EventPage, EventView, FailureView, JobView
    from phalanx.schemas.api.telemetry import LogLine, LogPage
    from phalanx.sdk import PhalanxClient

_LONG_POLL_S = 20.0
_REFRESH_S = 0.5
_MAX_TRIES = 30
_TELL_AT = 2
_DRAIN_S = 10.0
_RECENT = 400
_LOOK_EVERY = 8
T = TypeVar("T")


class CtrlC(Enum):
    """What Ctrl-C does to the job."""

    CANCEL = "cancel"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class OutputFilter:
    """Which output to show: that of all ranks, of rank 0, or of one rank; one stream or both.

    With `role`, only output of that role; ranks are then numbers within the role.
    """

    ranks: Literal["all", "first"] | int = "first"
    stream: Literal["out", "err"] | None = None
    tail: int | None = None
    role: str | None = None

    @property
    def rank(self) -> int | None:
        """The rank for the server's filter; None: all ranks."""
        if self.ranks == "all":
            return None
        return 0 if self.ranks == "first" else self.ranks


class ReconnectingClient:
    """The client of one thread; it waits for a restarted control plane and reconnects.

    The event `left` ends the waiting; all threads of a follower share it. `what` is followed.
    """

    def __init__(
        self,
        session: Session,
        tell: Callable[[str], None],
        left: threading.Event,
        what: str = "job",
    ) -> None:
        self._session, self._tell, self._left, self._what = session, tell, left, what
        self._client: PhalanxClient | None = None

    def call(self, ask: Callable[[PhalanxClient], T]) -> T:
        """Return `ask(client)`, repeated while the control plane does not answer.

        Raises ServerUnavailable after the last try, and every other error at once.
        """
        for tries in range(_MAX_TRIES):
            try:
                if self._client is None:
                    self._client = self._session.connect()
                return ask(self._client)
            except ServerUnavailable as error:
                self._client = None
                if self._left.is_set():
                    raise
                if tries == _TELL_AT:
                    self._tell(f"{error.message}; the {self._what} continues; trying again")
                self._left.wait(backoff_s(tries + 1, first_s=0.1, max_s=2.0))
        raise ServerUnavailable("the control plane does not answer any more")


def _events_after(num: int, after: int, client: PhalanxClient) -> EventPage:
    return client.events(num, after=after, wait_s=_LONG_POLL_S)


def _lines_after(
    num: int, view: OutputFilter, cursor: str | None, client: PhalanxClient
) -> LogPage:
    tail = view.tail if cursor is None else None
    return client.logs(
        num,
        ranks=one_rank(view.rank),
        stream=view.stream,
        tail=tail,
        cursor=cursor,
        wait_s=_LONG_POLL_S,
        role=view.role,
    )


class Follower:
    """Shows a job: two long polls, for events and for output, feed one loop."""

    def __init__(
        self,
        session: Session,
        client: PhalanxClient,
        num: int,
        view: OutputFilter,
        interrupts: CtrlC,
        screen: Screen | None = None,
    ) -> None:
        self._num, self._view, self._interrupts = num, view, interrupts
        self._job: JobView = client.job(num)
        self._screen = screen or screen_for(f"{self._job.label} {self._job.name}")
        self._session = session
        self._left = threading.Event()
        self._link = self._new_link()
        self._inbox: queue.SimpleQueue[EventView | list[LogLine] | str | PlatformError] = (
            queue.SimpleQueue()
        )
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._shown: tuple[str, str] | None = None
        self._trouble: str | None = None
        self._refreshed = 0
        self._interrupted = 0
        self._flowing = {"events", "lines"}

    def _new_link(self) -> ReconnectingClient:
        return ReconnectingClient(self._session, self._screen.say, self._left)

    def run(self) -> int:
        """Show the job until it ends; returns the exit code.

        Raises PlatformError when the control plane does not come back.
        """
        for pump in (self._pump_events, self._pump_lines):
            threading.Thread(target=self._guarded, args=(pump,), daemon=True).start()
        try:
            code = self._until_over()
        finally:
            self._left.set()
            self._screen.close()
        return code

    def _until_over(self) -> int:
        while True:
            try:
                self._show_until_over()
                self._screen.close()
                self._close()
                return INTERRUPTED if self._interrupted else code_of(self._job)
            except KeyboardInterrupt:
                self._interrupted += 1
                if not self._continues():
                    return INTERRUPTED

    def _continues(self) -> bool:
        """Whether to continue following after Ctrl-C."""
        label = self._job.label
        if self._interrupts is CtrlC.NOTHING:
            return False
        if self._interrupted > 1:
            self._screen.say(f"detached; {label} is still stopping: phalanx show {label}")
            return False
        self._screen.say(f"cancelling {label}: its ranks save and exit (Ctrl-C again: do not wait)")
        try:
            self._link.call(lambda client: client.stop(self._num, goal="cancel"))
        except ServerError as error:
            self._screen.say(f"could not cancel: {error.message}")
            return False
        except PlatformError as error:
            self._screen.say(error.message)  # it had ended before
        return True

    # -- what arrives -----------------------------------------------------------------------------

    def _guarded(self, pump: Callable[[ReconnectingClient], None]) -> None:
        try:
            pump(self._new_link())
        except PlatformError as error:
            self._inbox.put(error)

    def _pump_events(self, link: ReconnectingClient) -> None:
        after = 0
        while True:
            page = link.call(partial(_events_after, self._num, after))
            after = page.cursor
            for event in page.events:
                self._inbox.put(event)
            if page.done:
                self._inbox.put("events")
                return

    def _pump_lines(self, link: ReconnectingClient) -> None:
        cursor: str | None = None
        while True:
            page = link.call(partial(_lines_after, self._num, self._view, cursor))
            cursor = page.cursor
            if page.lines:
                self._inbox.put(list(page.lines))
            if page.done:
                self._inbox.put("lines")
                return

    # -- what is shown ----------------------------------------------------------------------------

    def _show_until_over(self) -> None:
        waited_s = 0.0
        while self._flowing:
            try:
                item = self._inbox.get(timeout=_REFRESH_S)
            except queue.Empty:
                self._refresh()
                # Output without an end (of a lost supervisor) must not block the exit.
                waited_s += _REFRESH_S if "events" not in self._flowing else 0.0
                if waited_s > _DRAIN_S:
                    return
                continue
            if isinstance(item, PlatformError):
                raise item
            if isinstance(item, str):
                self._flowing.discard(item)
            elif isinstance(item, list):
                self._lines(item)
            else:
                self._event(item)

    def _refresh(self) -> None:
        self._job = self._link.call(lambda client: client.job(self._num))
        self._screen.progress(self._job)
        if self._refreshed % _LOOK_EVERY == 0:
            self._tell_trouble()
        self._refreshed += 1

    def _tell_trouble(self) -> None:
        """Report a control plane that cannot store: the job continues, its reports wait on its node."""
        trouble = self._link.call(lambda client: client.info()).trouble
        if trouble is not None and self._trouble is None:
            self._screen.say(f"{trouble}; the job continues and nothing is lost")
        elif trouble is None and self._trouble is not None:
            self._screen.say("the control plane can store again")
        self._trouble = trouble

    def _lines(self, lines: list[LogLine]) -> None:
        for line in lines:
            label = f"[{line.source}] " if self._view.ranks == "all" else ""
            if line.stream == "err":
                self._recent.append(line.text)
            self._screen.line(line, label)

    def _event(self, event: EventView) -> None:
        told = notice(event)
        if told is not None:
            self._screen.say(told)
            return
        said = event.reason.message or event.reason.code
        if (event.state, said) == self._shown:
            return
        self._shown = (event.state, said)
        after_s = (event.at - self._job.submitted_at).total_seconds()
        self._screen.state(max(0.0, after_s), event.state, said)

    # -- how it ended -----------------------------------------------------------------------------

    def _close(self) -> None:
        self._job = job = self._link.call(lambda client: client.job(self._num))
        ran = lasted(job.started_at, job.ended_at)
        again = f", {job.restarts} restart{'s' * (job.restarts != 1)}" if job.restarts else ""
        if job.state != "succeeded" and job.failure is not None:
            self._show_failure(job.failure)
        self._screen.say(f"{job.label} {job.state}" + (f" after {ran}" if ran else "") + again)
        if job.state == "failed":
            rank = job.failure.rank if job.failure is not None else None
            which = "" if rank is None else f" --rank {rank}"
            self._screen.say(f"  {job.reason.message}")
            self._screen.say(f"  all output: phalanx logs {job.label}{which}")

    def _show_failure(self, failure: FailureView) -> None:
        """Show the traceback in one block, unless it was just shown."""
        lines = failure.traceback.rstrip().splitlines()
        if not lines or (self._view.rank == failure.rank and lines[-1] in self._recent):
            return
        self._screen.say(f"{failure.where} failed first:")
        for line in lines:
            self._screen.say(f"  {line}")
