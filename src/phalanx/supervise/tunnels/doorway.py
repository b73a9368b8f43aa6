"""Joins the tunnels that wait for this supervisor, when its orders say that there are new ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from phalanx.core.tunnels.model import TunnelPurpose
from phalanx.schemas.wire.tunnels import TunnelOrder
from phalanx.supervise.processes import LaunchRequest, ProcessObserver
from phalanx.supervise.ranks.generation import Generation, GenerationContext
from phalanx.supervise.tunnels.calls import NodeCalls, NodeTunnel
from phalanx.supervise.tunnels.commands import CommandTunnel, RankPlace, refuse
from phalanx.supervise.tunnels.ports import PortTunnel

# Files of a rank that another process must not write or answer.
_OF_RANK_ALONE = frozenset(
    {
        *("PHALANX_REPORT_FILE", "PHALANX_CONTROL_FILE", "PHALANX_SECRET_FILE"),
        "TORCHELASTIC_ERROR_FILE",
    }
)
_LOG = logging.getLogger(__name__)
# A request may have been made at another process of the control plane: a new connection may reach that.
_LOOKS, _PAUSE_S = 40, 0.5


class TunnelDoorway:
    """Starts what tunnels are for. It is called on the main thread; requests have threads of their own."""

    def __init__(
        self, context: GenerationContext, current: Callable[[], Generation | None]
    ) -> None:
        """`current` returns the generation that runs now."""
        self._assignment, self._processes = context.assignment, context.processes
        self._server, self._current = context.server, current
        self._seen = 0

    def look(self, newest: int) -> None:
        """Ask for tunnels where the number of the newest request is new."""
        if newest <= self._seen:
            return
        missed, self._seen = newest - self._seen, newest
        threading.Thread(target=self._ask, args=(missed,), name="tunnels", daemon=True).start()

    def _calls(self) -> NodeCalls:
        gang = self._assignment.gang
        key = {
            "job": gang.job.num,
            "attempt": gang.attempt,
            "node_rank": self._assignment.node_rank,
            "incarnation": self._assignment.incarnation,
        }
        return NodeCalls(self._server, self._assignment.token, key)

    def _ask(self, missed: int) -> None:
        """Look until all that were requested are found, or their clients have given up."""
        for number in range(_LOOKS):
            calls = self._calls()
            try:
                found = [TunnelOrder.model_validate(one) for one in calls.waiting()]
            except (OSError, ValueError) as error:
                _LOG.warning("tunnels cannot be asked for: %s", error)
                found = []
            finally:
                calls.close()
            for one in found:
                self._join(one)
            missed -= len(found)
            if missed <= 0 or number == _LOOKS - 1:
                return
            time.sleep(_PAUSE_S)

    def _join(self, order: TunnelOrder) -> None:
        tunnel = NodeTunnel(order.tunnel, self._calls)
        purpose = TunnelPurpose(
            kind=order.kind,
            rank=order.rank,
            command=tuple(order.command),
            tty=order.tty,
            rows=order.rows,
            columns=order.columns,
            port=order.port,
        )
        if purpose.kind == "forward":
            PortTunnel(tunnel, purpose).start()
            return
        self._processes.loop.call_from_outside(lambda: self._run(tunnel, purpose))

    def _run(self, tunnel: NodeTunnel, purpose: TunnelPurpose) -> None:
        """Start a command beside a rank, on the main thread."""
        place = self._place_of(purpose.rank)
        if place is None:
            said = f"rank {purpose.rank} does not run any more"
            threading.Thread(target=refuse, args=(tunnel, said), daemon=True).start()
            return

        def start(argv: list[str], launch: LaunchRequest, observer: ProcessObserver) -> None:
            self._processes.start_command(argv, launch, observer, place.cwd)

        try:
            CommandTunnel(tunnel, purpose).start(place, start)
        except OSError as error:
            said = f"the node cannot start a command: {error}"
            threading.Thread(target=refuse, args=(tunnel, said), daemon=True).start()

    def _place_of(self, rank: int) -> RankPlace | None:
        """The environment and the folder of a rank that runs; None: it does not."""
        current = self._current()
        ranks = () if current is None or current.ending else current.ranks
        for one in ranks:
            if one.rank == rank and one.running:
                env = {key: text for key, text in one.env.items() if key not in _OF_RANK_ALONE}
                return RankPlace(env, self._assignment.cwd)
        return None
