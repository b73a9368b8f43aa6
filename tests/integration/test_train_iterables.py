"""Iterable data sets, samplers of a user's own, fingerprints: what `prepare` makes of them."""

import contextlib
import gc
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    get_worker_info,
)

from phalanx.errors import DataCorrupt, NotSupported, RankDesync, RestoreMismatch
from phalanx.train.data import fingerprint, ordering, shares, streaming
from phalanx.train.data import loader as data
from phalanx.train.gang import randomness
from phalanx.train.gang.report import NoReport

pytestmark = pytest.mark.integration
NUM = 23


class Course:
    keeps_batches = False

    def __init__(self, start=(0, 0)):
        self.start, self.shares = start, []

    def start_pass(self):
        return self.start

    def boundary(self):
        pass

    def finish_pass(self):
        pass

    def begin(self, share):
        self.shares.append(share)

    def again(self):
        return False


class Plain(IterableDataset):
    """Draws from every global generator, splits itself over workers as torch's pages advise."""

    def __iter__(self):
        info = get_worker_info()
        own = (info.id, info.num_workers) if info else (0, 1)
        for at in range(own[0], NUM, own[1]):
            yield at, torch.rand(()).item(), np.random.rand(), random.random()


class Sized(Plain):
    def __len__(self):
        return NUM


class Skipping(Sized):
    def __init__(self, first=0, reads=None):
        self.first, self.reads = first, reads if reads is not None else []

    def __iter__(self):
        for row in range(self.first, NUM):
            self.reads.append(row)
            yield row, row * 0.5

    def skip(self, num):
        return Skipping(num, self.reads)


class Stateful(Sized):
    """Goes on where its state says, and forgets it at the end: as torchdata and datasets do."""

    def __init__(self):
        self.at, self.reads = 0, []

    def __iter__(self):
        while self.at < NUM:
            self.at += 1
            self.reads.append(self.at - 1)
            yield self.at - 1, (self.at - 1) * 0.5
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def loaders(dataset, world=1, start=(0, 0), **options):
    """(loader, course) of every rank."""
    found = []
    for rank in range(world):
        course = Course(start)
        batches = options.pop("batch_size", 4) if "batch_sampler" not in options else 1
        given = {**options} if "batch_sampler" in options else {**options, "batch_size": batches}
        loader = data.positioned(
            DataLoader(dataset, **given),
            course,
            seed=1,
            place=(rank, world),
            reference_world=2,
            accumulate=1,
            device=torch.device("cpu"),
        )
        found.append((loader, course))
    return found


def rows_of(dataset, world=1, start=(0, 0), **options):
    """Every rank's samples, merged in the order of their positions."""
    merged = []
    for loader, course in loaders(dataset, world, start, **options):
        for at, batch in enumerate(loader):
            share = course.shares[at]
            columns = batch if isinstance(batch, list | tuple) else [batch]
            rows = list(zip(*(column.tolist() for column in columns), strict=True))
            merged += [] if share.spare else list(zip(range(share.lo, share.hi), rows, strict=True))
    return [row for _, row in sorted(merged)]


FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}


@pytest.mark.parametrize("kind", [Plain, Sized, Skipping, Stateful])
def test_a_stream_is_read_exactly_once_at_any_world_size_and_from_any_position(kind):
    alone = rows_of(kind())
    assert [row[0] for row in alone] == list(range(NUM))
    assert rows_of(kind(), world=3) == alone
    assert rows_of(kind(), start=(0, 8)) == alone[8:]
    assert rows_of(kind(), world=2, start=(0, 16)) == alone[16:]


@pytest.mark.parametrize("kind", [Plain, Stateful])
def test_workers_neither_lose_nor_repeat_anything(kind):
    assert rows_of(kind(), world=2, **FORKED) == rows_of(kind())
    again = {**FORKED, "persistent_workers": True}
    ((loader, course),) = loaders(kind(), **again)
    passes = []
    for number in range(3):
        course.start = (number, 0)
        passes.append([value for batch in loader for value in batch[0].tolist()])
    assert passes == [list(range(NUM))] * 3


def test_without_hiding_the_workers_samples_would_be_lost(monkeypatch):
    """The negative control: the data set splits itself, and what it leaves out comes from nowhere."""
    monkeypatch.setattr(streaming, "_no_worker", contextlib.nullcontext)
    # The iterator waits this long for each abandoned worker, 5 s by default.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    with pytest.raises(DataCorrupt, match="ended after"):
        rows_of(Plain(), **FORKED)
    gc.collect()


def test_a_pass_begun_anew_begins_at_the_start():
    for kind in (Plain, Stateful, Skipping):
        ((loader, course),) = loaders(kind())
        next(iter(loader))
        assert [v for batch in loader for v in batch[0].tolist()] == list(range(NUM))
        assert course.start == (0, 0)


def test_a_stream_with_state_or_skip_is_not_read_again_at_a_resume(monkeypatch):
    monkeypatch.setattr(streaming, "_MARK_EVERY_S", 0.0)
    ((loader, _),) = loaders(Stateful())
    taken = [batch for _, batch in zip(range(2), loader, strict=False)]
    text = loader.stream_state
    assert [v for batch in taken for v in batch[0].tolist()] == list(range(16))
    fresh = Stateful()
    ((again, _),) = loaders(fresh, start=(0, 16))
    fresh.reads.clear()
    again.take_up(text)
    assert [v for batch in again for v in batch[0].tolist()] == list(range(16, NUM))
    assert min(fresh.reads) == 16
    skipping = Skipping()
    ((third, _),) = loaders(skipping, start=(0, 16))
    skipping.reads.clear()
    assert [v for batch in third for v in batch[0].tolist()] == list(range(16, NUM))
    assert min(skipping.reads) == 16
    plain = Stateful()  # the negative control: with no state it reads from the start
    ((fourth, _),) = loaders(plain, start=(0, 16))
    plain.reads.clear()
    assert [v for batch in fourth for v in batch[0].tolist()] == list(range(16, NUM))
    assert min(plain.reads) == 0


def test_marks_come_from_workers_and_never_point_past_the_position():
    ((loader, course),) = loaders(Stateful(), **FORKED)
    for _ in loader:
        mark = streaming.StreamPosition.from_json(loader.stream_state)
        assert mark.total_passes == 0 and mark.cursor <= course.shares[-1].end
        assert mark.state == {"at": mark.cursor}


def test_a_state_that_no_checkpoint_can_hold_is_done_without():
    assert streaming.StreamPosition(0, 3, {"socket": object()}).to_json() is None
    assert streaming.StreamPosition(0, 3, {"weights": torch.ones(2)}).to_json() is None


def test_a_stream_that_is_other_each_time_or_shorter_than_it_says_is_refused():
    class Restless(Sized):
        rng = random.Random(3)

        def __iter__(self):
            yield from (self.rng.random() for _ in range(NUM))

    class Short(Sized):
        def __len__(self):
            return NUM + 9

    with pytest.raises(NotSupported, match="Restless yields other samples each time"):
        loaders(Restless())
    with pytest.raises(DataCorrupt, match="ended after 23 samples, but an epoch has 32"):
        rows_of(Short())
    with pytest.raises(NotSupported, match="batch_size=None"):
        loaders(Plain(), batch_size=None)
    with pytest.raises(NotSupported, match="yields no samples"):
        loaders(type("Empty", (IterableDataset,), {"__iter__": lambda self: iter(())})())


def test_evaluation_of_a_stream_gives_every_sample_once():
    seen = []
    for rank in range(3):
        loader = data.EvaluationLoader(
            DataLoader(Plain(), batch_size=4), (rank, 3), 1, torch.device("cpu")
        )
        first = [v for batch in loader for v in batch[0].tolist()]
        assert [v for batch in loader for v in batch[0].tolist()] == first
        seen += first
    assert seen == list(range(NUM))


# -- samplers --------------------------------------------------------------------------------------


class ByLength(Sampler):
    """A batch sampler: batches of uneven size, in an order that the global generator draws."""

    def __init__(self, sizes=(1, 5, 9, 8)):
        self.sizes = sizes

    def __iter__(self):
        order = torch.randperm(sum(self.sizes)).tolist()
        for size in self.sizes:
            yield [order.pop() for _ in range(size)]


class Backwards(Sampler):
    def __len__(self):
        return NUM

    def __iter__(self):
        return iter(range(NUM - 1, -1, -1))


NUMBERS = TensorDataset(torch.arange(NUM))


def test_a_users_sampler_gives_the_order_of_the_epoch():
    options = {"sampler": Backwards()}
    alone = rows_of(NUMBERS, **options)
    assert [row[0] for row in alone] == list(range(NUM - 1, -1, -1))
    assert rows_of(NUMBERS, world=3, **options) == alone
    assert rows_of(NUMBERS, start=(0, 8), **options) == alone[8:]


def test_a_batch_samplers_batches_are_split_over_the_ranks():
    options = {"batch_sampler": ByLength()}
    alone = rows_of(NUMBERS, **options)
    assert sorted(row[0] for row in alone) == list(range(NUM))
    assert rows_of(NUMBERS, world=3, **options) == alone
    assert rows_of(NUMBERS, world=2, start=(0, 6), **options) == alone[6:]
    assert rows_of(NUMBERS, start=(1, 0), **options) != alone
    ((loader, course),) = loaders(NUMBERS, **options)
    assert [len(x) for (x,) in loader] == [1, 5, 9, 8] and len(loader) == 4
    assert [share.end for share in course.shares] == [1, 6, 15, 23]
    seen = []
    for rank in range(3):
        own = DataLoader(NUMBERS, batch_sampler=ByLength())
        evaluation = data.EvaluationLoader(own, (rank, 3), 1, torch.device("cpu"))
        seen += [v for (x,) in evaluation for v in x.tolist()]
    assert sorted(seen) == list(range(NUM))


def test_samplers_that_cannot_be_drawn_again_are_refused():
    class Counting(Sampler):
        calls = 0

        def __len__(self):
            return NUM

        def __iter__(self):
            self.calls += 1
            return iter([(at + self.calls) % NUM for at in range(NUM)])

    class Growing(ByLength):
        def set_epoch(self, epoch):
            self.sizes = (1, 5 + epoch)

    class Endless(Sampler):
        def __iter__(self):
            return iter(())

    with pytest.raises(NotSupported, match="Counting gives another order"):
        list(loaders(NUMBERS, sampler=Counting())[0][0])
    ((growing, course),) = loaders(NUMBERS, batch_sampler=Growing())
    course.start = (1, 0)
    with pytest.raises(NotSupported, match="Growing yielded 7 indices, but an epoch has 6"):
        list(growing)
    with pytest.raises(NotSupported, match="Endless has no length"):
        loaders(NUMBERS, sampler=Endless())
    with pytest.raises(NotSupported, match="not an index"):
        loaders(NUMBERS, batch_sampler=["ab"])
    plain = BatchSampler(Backwards(), 4, False)
    assert [row[0] for row in rows_of(NUMBERS, batch_sampler=plain)][:2] == [22, 21]


class Pair:
    """A channel of two ranks of which the other says something else, or the same."""

    def __init__(self, other):
        self.other = other

    def gather(self, mine):
        return [mine, mine if self.other is None else self.other]

    def broadcast(self, text):
        return text


def test_ranks_that_would_read_different_things_are_stopped():
    ordering.agreement_over(Pair(None))("the order", "a")
    agree = ordering.agreement_over(Pair(b"other"))
    loader = data.positioned(
        DataLoader(NUMBERS, batch_size=4, sampler=Backwards()),
        Course(),
        seed=1,
        place=(0, 2),
        reference_world=2,
        accumulate=1,
        device=torch.device("cpu"),
        agree=agree,
    )
    with pytest.raises(RankDesync, match="the order that the sampler gives is not the same"):
        list(loader)
    with pytest.raises(RankDesync, match="iterable data set"):
        data.positioned(
            DataLoader(Plain(), batch_size=4),
            Course(),
            seed=1,
            place=(0, 2),
            reference_world=2,
            accumulate=1,
            device=torch.device("cpu"),
            agree=agree,
        )


# -- fingerprints ----------------------------------------------------------------------------------


def test_fingerprints_tell_data_apart():
    numbers = torch.arange(1000.0)
    of = fingerprint.fingerprint_of
    other = numbers.clone()
    other[0] = 7
    assert of(TensorDataset(numbers)) == of(TensorDataset(numbers.clone()))
    assert of(TensorDataset(numbers)) != of(TensorDataset(other))
    assert of(TensorDataset(numbers)) != of(TensorDataset(numbers.double()))
    whole = TensorDataset(numbers)
    assert of(Subset(whole, [1, 2])) != of(Subset(whole, [2, 1]))
    assert of(ConcatDataset([whole, whole])) not in (None, of(whole))
    assert of(Plain()) is None and of(ConcatDataset([whole, [1]])) is None
    said = type("Said", (), {"fingerprint": "mine:1"})
    assert of(said()) == "mine:1"


def test_other_data_are_refused_with_what_differs():
    saved = {"num_samples": 10, "fingerprint": "content:xxh3-128:aa"}
    fingerprint.require_same(saved, saved, "checkpoint c")
    fingerprint.require_same({"num_samples": 10}, saved, "checkpoint c")
    fingerprint.require_same(saved, {**saved, "fingerprint": "listing:xxh3-128:bb"}, "c")
    with pytest.raises(
        RestoreMismatch, match=r"fingerprint .*:bb, the checkpoint has content:xxh3-128:aa"
    ):
        fingerprint.require_same(saved, {**saved, "fingerprint": "content:xxh3-128:bb"}, "c")
    with pytest.raises(RestoreMismatch, match="11 samples per epoch, the checkpoint has 10"):
        fingerprint.require_same(saved, {**saved, "num_samples": 11}, "checkpoint c")


# -- shares ----------------------------------------------------------------------------------------


def test_measured_shares_are_taken_up_by_the_next_generation():
    first = shares.shares_for("auto", 3, NoReport())
    assert first.parts() == (1000, 1000, 1000)
    first.observe([1.0, 1.0, 2.0])
    second = shares.shares_for("auto", 3, NoReport())
    second.load_state_dict(first.state_dict())
    assert second.parts() == first.parts() == (1200, 1200, 600)
    assert second.parts() == (1200, 1200, 600)  # nothing new was measured
    other_world = shares.shares_for("auto", 2, NoReport())
    other_world.load_state_dict(first.state_dict())
    assert other_world.parts() == (1000, 1000)


def test_randomness_comes_out_as_it_went_in():
    randomness.seed_everything(5)
    expected = (torch.rand(1), np.random.rand(), random.random())
    randomness.seed_everything(5)
    rows_of(Plain(), start=(0, 8))
    assert (torch.rand(1), np.random.rand(), random.random()) == expected
