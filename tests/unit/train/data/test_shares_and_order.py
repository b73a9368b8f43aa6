"""Shares of ranks and the order of a pass, without processes."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from phalanx.errors import NotSupported, RankDesync, RestoreMismatch, SpecInvalid
from phalanx.train.data.fingerprint import require_same
from phalanx.train.data.loader import EvaluationSampler
from phalanx.train.data.ordering import agreement_over, order_digest, order_of, require_seed
from phalanx.train.data.shares import MeasuredShares, Shares, shares_for
from phalanx.train.gang.report import NoReport

DATA = TensorDataset(torch.arange(10))


def test_shares_are_even_declared_or_measured() -> None:
    assert shares_for("even", 4, NoReport()).parts() == ()
    assert shares_for("auto", 1, NoReport()).parts() == ()
    assert isinstance(shares_for((2.0, 1.0), 2, NoReport()), Shares)
    assert isinstance(shares_for("auto", 2, NoReport()), MeasuredShares)
    with pytest.raises(SpecInvalid):
        shares_for((1.0, 1.0), 3, NoReport())


def test_a_slow_rank_gets_a_smaller_share_at_the_next_pass_only() -> None:
    shares = MeasuredShares(2, NoReport())
    before = shares.parts()
    shares.observe([1.0, 2.0])
    saved = shares.state_dict()
    first, second = shares.parts()
    assert before[0] == before[1]
    assert first > second
    resumed = MeasuredShares(2, NoReport())
    resumed.load_state_dict(saved)
    assert resumed.parts() == (first, second)
    resized = MeasuredShares(3, NoReport())
    resized.load_state_dict(saved)
    assert len(set(resized.parts())) == 1


def test_a_shuffled_order_depends_on_seed_and_pass_alone() -> None:
    loader = DataLoader(DATA, 2, shuffle=True)
    order, again = order_of(loader, 10, seed=3), order_of(DataLoader(DATA, 5, shuffle=True), 10, 3)
    torch.manual_seed(99)
    assert order(0).tolist() == again(0).tolist()
    assert order(0).tolist() != order(1).tolist()
    assert order(0).tolist() != order_of(loader, 10, seed=4)(0).tolist()
    assert sorted(order(7).tolist()) == list(range(10))


def test_a_sampler_that_cannot_be_repeated_is_refused() -> None:
    class Counting:
        count = 0

        def __iter__(self):
            Counting.count += 1
            return iter([Counting.count % 10])

        def __len__(self) -> int:
            return 1

    with pytest.raises(NotSupported, match="another order"):
        order_of(DataLoader(DATA, 1, sampler=Counting()), 10, 0)(0)


def test_the_agreement_compares_the_texts_of_all_ranks() -> None:
    class Channel:
        def gather(self, mine: bytes) -> list[bytes]:
            return [mine, b"x", b"x"]

        def broadcast(self, text: str) -> str:
            return text

    agree = agreement_over(Channel())
    agree("the order", "x")
    with pytest.raises(RankDesync, match="the order is not the same on all ranks"):
        agree("the order", "y")


def test_an_evaluation_divides_positions_or_batches_over_the_ranks() -> None:
    def keys(loader: DataLoader, size: int, rank: int) -> list[list[int]]:
        sampler = EvaluationSampler(order_of(loader, 10, 0), size, rank, 3)
        return [[index for _, index in batch] for batch in sampler]

    plain = DataLoader(DATA, 3)
    assert [keys(plain, 3, rank) for rank in range(3)] == [
        [[0, 1, 2], [3]],
        [[4, 5, 6]],
        [[7, 8, 9]],
    ]
    own = DataLoader(DATA, batch_sampler=[[3, 1], [0, 2, 4], [5], [6]])
    assert [keys(own, 0, rank) for rank in range(3)] == [[[3, 1], [0, 2, 4]], [[5]], [[6]]]


def test_a_checkpoint_of_other_data_or_another_seed_is_refused() -> None:
    saved = {"num_samples": 10, "fingerprint": "listing:a"}
    require_same(saved, {"num_samples": 10, "fingerprint": "content:b"}, "step 5")
    with pytest.raises(
        RestoreMismatch, match="fingerprint listing:c, the checkpoint has listing:a"
    ):
        require_same(saved, {"num_samples": 10, "fingerprint": "listing:c"}, "step 5")
    with pytest.raises(RestoreMismatch, match="11 samples per epoch, the checkpoint has 10"):
        require_same(saved, {"num_samples": 11}, "step 5")
    require_seed(1, 1, "step 5")
    with pytest.raises(RestoreMismatch, match="step 5 was written with seed 1, this run has 2"):
        require_seed(1, 2, "step 5")


def test_a_batch_sampler_gives_the_boundaries() -> None:
    batches = [[3, 1], [0, 2, 4], [5]]
    order = order_of(DataLoader(DATA, batch_sampler=batches), 10, 0)
    assert order(0).tolist() == [3, 1, 0, 2, 4, 5]
    assert order.bounds(0) == (2, 5, 6)
    assert order_digest(order(0), (2, 5, 6)) != order_digest(order(0), (1, 5, 6))
