"""Mixed load on control planes that tests disturb: what was accepted, and what was answered wrongly."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import httpx

from phalanx.errors import PlatformError
from phalanx.schemas.api.jobs import ChangeRequest
from phalanx.sdk import PhalanxClient
from support.replicas import Replicas

_WEIGHTS = {"submit": 10, "batch": 2, "again": 2, "read": 3, "change": 2, "cancel": 1}
_SLEEP_S = 0.3


class Load:
    """A client with one request at a time, each repeated until some replica has answered it.

    Jobs are submitted one by one and in batches, and again with the same key; they are read, listed, given
    another priority, and cancelled. An answer is wrong when it is an error that no replica's end explains,
    or when it lacks a job that was accepted.
    """

    def __init__(self, replicas: Replicas, dice: random.Random, pause_s: float = 0.5) -> None:
        self._replicas, self._dice, self._pause_s = replicas, dice, pause_s
        self._over, self._failed = threading.Event(), False
        self.accepted: dict[int, int] = {}
        """The number in the database of each job, by the number of its submission."""
        self._singles: list[int] = []
        self.cancelled: set[int] = set()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """The errors while no replica could answer, by status and message."""
        self.wrong: list[str] = []
        self._longest_s, self._began_s = 0.0, time.monotonic()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._failed = error[0] is not None
        self._over.set()
        self._thread.join()

    def waited_s(self) -> float:
        """The longest time that a request has taken since the last call, also one under way."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return max(longest_s, time.monotonic() - self._began_s)

    def _run(self) -> None:
        while not self._over.is_set():
            kind = self._dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            if not self._singles:
                kind = "submit"
            some = [self._replicas.new_job() for _ in range({"submit": 1, "batch": 3}.get(kind, 0))]
            some = some or [self._dice.choice(self._singles[-20:])]
            self._began_s = time.monotonic()
            while not self._answered(kind, some) and not self._given_up(kind):
                time.sleep(0.1)
            self.done[kind] += 1
            self._longest_s = max(self._longest_s, time.monotonic() - self._began_s)
            self._over.wait(self._pause_s)
            self._began_s = time.monotonic()

    def _given_up(self, kind: str) -> bool:
        """Whether the load ends; what may have been accepted is repeated until it is answered."""
        return self._over.is_set() and (self._failed or kind in ("read", "change"))

    def _answered(self, kind: str, some: list[int]) -> bool:
        living = [one for one in list(self._replicas.running) if one.url and not one.stopped]
        if not living:
            return False
        try:
            with self._replicas.client(self._dice.choice(living)) as client:
                self._ask(client, kind, some)
        except (PlatformError, httpx.HTTPError, OSError) as error:
            status = getattr(error, "http_status", 503)
            if kind in ("change", "cancel") and status == 409:
                return True  # the job has ended
            self.refused[f"{status} {error}"[:200]] += 1
            if status not in (500, 502, 503, 504, 507):
                self.wrong.append(f"{kind}: {error}")
            return False
        return True

    def _ask(self, client: PhalanxClient, kind: str, some: list[int]) -> None:
        replicas, first = self._replicas, some[0]
        if kind == "submit":
            self.accepted[first] = replicas.submit(client, _SLEEP_S, first)
            self._singles.append(first)
        elif kind == "batch":
            wanted = [replicas.request(one, _SLEEP_S) for one in some]
            made = client.submit_batch(wanted, key=f"batch-{first}")
            self.accepted |= {one: job.num for one, job in zip(some, made.jobs, strict=True)}
        elif kind == "again":
            num = replicas.submit(client, _SLEEP_S, first)
            if num != self.accepted[first]:
                self.wrong.append(f"{first} was j-{self.accepted[first]}, and again j-{num}")
        elif kind == "read":
            newest = max(self.accepted.values())
            listed = [one.num for one in client.jobs(sort="-num", limit=20).jobs]
            if client.job(newest).num != newest or newest > max(listed):
                self.wrong.append(f"j-{newest} is missing in {listed}")
        elif kind == "change":
            priority = self._dice.randrange(10, 90)
            client.change(self.accepted[first], ChangeRequest(priority=priority))
        else:
            self.cancelled.add(self.accepted[first])
            client.stop(self.accepted[first])
