"""Whether this control plane runs the loops, and its place among the replicas of a PostgreSQL database.

One process leads by a lease that runs out on the clock of the database. Each write of a loop compares the
token of its lease inside its transaction, so that a process which was stopped for a while, and wakes when
another one leads, writes nothing. On SQLite a home has one control plane, which leads without a lease.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
from dataclasses import replace
from functools import partial

import phalanx
from phalanx.errors import LeaseLost, PlatformError
from phalanx.kit.clock import Clock
from phalanx.kit.text import random_hex
from phalanx.launch.identity import boot_id
from phalanx.services.platform import Platform
from phalanx.store import migrate
from phalanx.store.database import Store, Tx
from phalanx.store.leadership import leases, replicas
from phalanx.store.leadership.leases import LOOPS, Holder, Lease
from phalanx.store.leadership.replicas import ReplicaRow

_LOG = logging.getLogger(__name__)
LEASE_S = 6.0
"""How long a lease lasts without a renewal, and how long a replica counts as alive without a sign."""
RENEW_S = 1.5
"""Interval between renewals, between tries to take a lease that another process has, and between signs."""
LEADER, STANDBY = "leader", "standby"


def this_replica(url: str, key: bytes, num_local_slots: int, now: int) -> ReplicaRow:
    """What the other replicas are told of this process."""
    return ReplicaRow(
        id=random_hex(16),
        name=f"{socket.gethostname()[:100]}:{os.getpid()}",
        url=url,
        version=phalanx.__version__,
        schema=migrate.HEAD,
        home=hashlib.sha256(b"home:" + key).hexdigest()[:32],
        machine=boot_id() if num_local_slots else "",
        started_at=now,
    )


class Leadership:
    """The lease of this process, while it has one. Its methods that use the database run in threads."""

    def __init__(self, store: Store, clock: Clock, me: ReplicaRow | None = None) -> None:
        """`me` is the entry among the replicas; None: there are no others."""
        self._store, self._clock = store, clock
        self.me = me
        self._lease: Lease | None = None
        self._renewed_s = float("-inf")

    @property
    def role(self) -> str:
        """`leader` or `standby`, as far as this process knows."""
        return LEADER if self.me is None or self._lease is not None else STANDBY

    def holder(self) -> Holder | None:
        """The present leader; None while there is none, and on SQLite."""
        if self.me is None:
            return None
        return self._store.view(lambda tx: leases.holder(tx, LOOPS))

    # -- the lease -----------------------------------------------------------------------------------

    def take(self) -> Lease | None:
        """Try to become the leader."""
        assert self.me is not None
        name, began_s = self.me.name, self._clock.monotonic()
        self._lease = self._store.transact(lambda tx: leases.take(tx, LOOPS, name, LEASE_S))
        self._renewed_s = began_s
        if self._lease is not None:
            _LOG.warning("this control plane leads now (token %d)", self._lease.token)
        return self._lease

    def renew(self, lease: Lease) -> None:
        """Extend the lease. Raises LeaseLost, also where no renewal has succeeded for too long."""
        began_s = self._clock.monotonic()
        try:
            try:
                self._store.transact(lambda tx: leases.renew(tx, lease, LEASE_S))
                self._renewed_s = began_s
            except LeaseLost:
                raise
            except PlatformError as error:
                _LOG.warning("the lease cannot be renewed: %s", error)
                self.expect(lease)
        except LeaseLost:
            self._lease = None
            raise

    def expect(self, lease: Lease) -> None:
        """Raise LeaseLost where this process can tell that its lease has run out.

        No more than an early warning before something is started: the database decides about writes.
        """
        if self._lease != lease or self._clock.monotonic() - self._renewed_s >= LEASE_S:
            raise LeaseLost(f"lease {lease.name} with token {lease.token} was not renewed in time")

    def platform_of(self, platform: Platform, lease: Lease) -> Platform:
        """The platform for the loops of one lease: all of its writes are refused without that lease."""

        def fence(tx: Tx) -> None:
            leases.check(tx, lease)

        return replace(
            platform, store=self._store.fenced(fence), may_act=partial(self.expect, lease)
        )

    def stand_by(self) -> None:
        """Lead no longer; give the lease to the next process where it is still there."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        _LOG.warning("this control plane stands by")
        try:
            self._store.transact(lambda tx: leases.give_up(tx, lease))
        except PlatformError as error:
            _LOG.warning("the lease was not given up: %s", error)

    # -- the replicas --------------------------------------------------------------------------------

    def join(self) -> None:
        """Become one of the replicas. Raises Conflict where this process could not replace the others."""
        me = self.me
        if me is not None:
            self._store.transact(lambda tx: replicas.join(tx, me, LEASE_S))

    def beat(self) -> list[ReplicaRow]:
        """Say that this process lives; returns all replicas that do.

        Raises Conflict as `join` does, and NotSupported when a later release has made the schema unusable.
        """
        me = self.me
        if me is None:
            return []

        def work(tx: Tx) -> list[ReplicaRow]:
            migrate.check_usable(tx.conn)
            if not replicas.beat(tx, me.id, LEASE_S):
                replicas.join(tx, me, LEASE_S)
            return replicas.live(tx)

        return self._store.transact(work)

    def living(self) -> list[tuple[ReplicaRow, str]]:
        """The replicas that live, each with its role; none on SQLite."""
        if self.me is None:
            return []

        def work(tx: Tx) -> list[tuple[ReplicaRow, str]]:
            holder = leases.holder(tx, LOOPS)
            leader = None if holder is None else holder.owner
            return [(one, LEADER if one.name == leader else STANDBY) for one in replicas.live(tx)]

        return self._store.view(work)

    def has_others(self) -> bool:
        """Whether another replica lives, which would lead without this one."""
        me = self.me
        return me is not None and any(row.id != me.id for row in self._store.view(replicas.live))

    def leave(self) -> None:
        """Remove this process from the replicas."""
        me = self.me
        if me is not None:
            try:
                self._store.transact(lambda tx: replicas.leave(tx, me.id))
            except PlatformError as error:
                _LOG.warning("%s stays among the replicas for a while: %s", me.name, error)
