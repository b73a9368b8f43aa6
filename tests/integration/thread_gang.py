"""Ranks as threads of one process, for what savers do together; no process group."""

import threading

import torch
from torch import nn

from phalanx.core.contract.checkpointing import CheckpointPolicy
from phalanx.core.contract.records import to_json
from phalanx.core.training.checkpoints import Position
from phalanx.kit.clock import SystemClock
from phalanx.train.gang.context import RankInfo
from phalanx.train.state import restoring, tree
from phalanx.train.state.resuming import Resumption
from phalanx.train.state.saving import CheckpointDirectory, SaveRequest
from phalanx.train.state.staging import Staging

GUARD_S = 60


class Meeting:
    """What the channels of one gang share."""

    def __init__(self, world):
        self.barrier = threading.Barrier(world)
        self.slots = [None] * world

    def exchange(self, rank, value):
        self.slots[rank] = value
        try:
            self.barrier.wait(GUARD_S)
            found = list(self.slots)
            self.barrier.wait(GUARD_S)
        except threading.BrokenBarrierError:
            raise RuntimeError("a peer is gone") from None
        return found


def on_threads(world, work):
    """`work(rank)` in a thread for each rank; the results in rank order."""
    results, errors = [None] * world, []

    def run(rank):
        try:
            results[rank] = work(rank)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(GUARD_S)
        assert not one.is_alive(), "hangs"
    if errors:
        raise errors[0]
    return results


class ThreadChannel:
    def __init__(self, meeting, rank):
        self.meeting, self.rank = meeting, rank

    def gather(self, mine):
        found = self.meeting.exchange(self.rank, mine)
        return found if self.rank == 0 else []

    def broadcast(self, text):
        return self.meeting.exchange(self.rank, text)[0]

    def spread(self, text):
        return self.broadcast(text)

    def total(self, values):
        return [sum(one) for one in zip(*self.meeting.exchange(self.rank, values), strict=True)]

    def settle(self):
        pass


class Notes:
    """A report that keeps its records."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(to_json(record, 0))

    def close(self):
        pass


def trained(fill, width=130):
    """A model and its optimizer, equal on all ranks, with tensors large enough to be cut."""
    model = nn.Sequential(nn.Linear(width, 257), nn.Linear(257, 3))
    opt = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        for at, one in enumerate(model.parameters()):
            one.copy_(torch.arange(one.numel(), dtype=torch.float32).reshape(one.shape) + fill + at)
            opt.state[one] = {"step": torch.tensor(float(fill)), "exp_avg": one.clone() * 2}
    return model, opt


class ThreadGang:
    """`world` savers over one directory; `disks` is called with a rank.

    `store` and `storage` may also be called with a rank, for folders and stores of their own.
    """

    def __init__(
        self,
        store,
        world,
        disks,
        keep=None,
        staging=Staging,
        resumption=Resumption,
        width=130,
        storage=None,
        **place,
    ):
        self.width = width
        self.resumption = resumption
        self.world, self.reports = world, [Notes() for _ in range(world)]
        meeting = Meeting(world)
        self.pairs = [trained(0, width) for _ in range(world)]
        self.savers = []
        for rank in range(world):
            options = {"checkpoint": CheckpointPolicy(keep=keep)} if keep else {}
            info = RankInfo(rank=rank, world_size=world, local_world_size=world, **options, **place)
            saver = CheckpointDirectory(
                store(rank) if callable(store) else store,
                info,
                ThreadChannel(meeting, rank),
                self.reports[rank],
                SystemClock(),
                disks(rank),
                staging(),
                storage(rank) if callable(storage) else storage,
            )
            model, opt = self.pairs[rank]
            saver.watch([model], [opt], "ddp")
            self.savers.append(saver)

    def everywhere(self, work):
        """`work(rank)` in a thread for each rank; the results in rank order."""
        return on_threads(self.world, work)

    def set(self, fill):
        for model, opt in self.pairs:
            fresh, state = trained(fill, self.width)
            model.load_state_dict(fresh.state_dict())
            opt.load_state_dict(state.state_dict())

    def save(self, step, why="every"):
        """Begin a save on every rank."""

        def begin(rank):
            model, opt = self.pairs[rank]
            state = {
                "models": [model.state_dict()],
                "optimizers": [opt.state_dict()],
                "state": {"rank": rank},
                "tracked": {},
            }
            moment = SaveRequest(step=step, position=Position(), why=why, rng=bytes([rank, step]))
            return self.savers[rank].save(lambda: state, moment)

        return self.everywhere(begin)

    def wait(self):
        return [saver.wait() for saver in self.savers]

    def open(self):
        """Resume on every rank, models in place; what each resumed from."""

        def resume(rank):
            model = self.pairs[rank][0]
            resumption = self.resumption(self.savers[rank])
            resumption.open()
            resumption.put(lambda one: restoring.model(model, one.state["models"][0], "test"))
            resumption.put(lambda one: tree.cloned(one.state["optimizers"]))
            resumption.settle()
            return resumption.restored

        return self.everywhere(resume)
