"""A coordinator and its sites over real sockets, in one process."""

import json
import socket
import threading

import pytest
import torch
from torch import nn

from phalanx.errors import CheckpointCorrupt, RestoreMismatch, SpecInvalid, TrainingError
from phalanx.launch.authentication import authenticate
from phalanx.train.federated import Coordinator, Site, coordinator, site_token
from phalanx.train.numerics.local_sgd import wire

pytestmark = pytest.mark.integration
GUARD_S = 60
QUICK = {"gather_s": 0.1, "round_s": 30.0, "token": "secret"}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


class Federated:
    """A coordinator on a thread; `stop` leaves it as a kill would: with what is on disk."""

    def __init__(self, folder, **options):
        self.rounds = []
        self.coordinator = Coordinator(
            model(),
            directory=folder,
            on_round=lambda *told: self.rounds.append(told),
            **{**QUICK, **options},
        )
        self.port, there = 0, threading.Event()

        def ready(port):
            self.port = port
            there.set()

        self.thread = threading.Thread(
            target=self.coordinator.serve,
            args=("127.0.0.1", 0),
            kwargs={"ready": ready},
            daemon=True,
        )
        self.thread.start()
        assert there.wait(GUARD_S)

    def site(self, name, **options):
        often = threading.Event()
        return Site(
            f"127.0.0.1:{self.port}",
            name=name,
            token=site_token("secret", name),
            patience_s=20,
            sleep=lambda seconds: often.wait(min(seconds, 0.02)) and None,
            **options,
        )

    def join(self):
        self.thread.join(GUARD_S)
        assert not self.thread.is_alive()


def everywhere(*works):
    errors = []

    def guarded(work):
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for one in threads:
        one.start()
    for one in threads:
        one.join(GUARD_S)
        assert not one.is_alive(), "hangs"
    if errors:
        raise errors[0]


def adding(site, amount, count, seen=None):
    """A site whose training adds a number to every weight."""

    def work():
        mine = model()
        for turn in site.rounds(mine):
            with torch.no_grad():
                for one in mine.parameters():
                    one += amount
            site.submit(count=count, loss=amount)
            if seen is not None:
                seen.append(turn)
        work.final = mine

    return work


def test_the_model_is_the_mean_weighted_by_samples(tmp_path):
    one = Federated(tmp_path, num_rounds=2)
    works = [adding(one.site("a"), 1.0, 10), adding(one.site("b"), 4.0, 30)]
    everywhere(*works)
    one.join()
    for before, after in zip(model().parameters(), one.coordinator.model.parameters(), strict=True):
        assert torch.allclose(after, before + 2 * 3.25)
    assert [number for number, _ in one.rounds] == [1, 2]
    assert one.rounds[0][1] == {"sites": 2.0, "samples": 40.0, "loss": 3.25}
    for work in works:
        finals = zip(
            work.final.state_dict().values(),
            one.coordinator.model.state_dict().values(),
            strict=True,
        )
        assert all(torch.equal(mine, theirs) for mine, theirs in finals)


@pytest.mark.leaves("the first coordinator plays one that was killed")
def test_a_coordinator_that_is_killed_comes_back_with_the_answers_it_had(tmp_path):
    first = Federated(tmp_path, num_rounds=1)
    answer = first.coordinator.answer
    answer("a", {"do": "work"}), answer("b", {"do": "work"})
    while answer("a", {"do": "work"})["do"] != "train":
        answer("b", {"do": "work"})
    weights = {
        name: one + 1 if one.is_floating_point() else one
        for name, one in model().state_dict().items()
    }
    said = {"do": "submit", "round": 1, "weights": weights, "count": 5, "metrics": {}}
    assert answer("a", said) == {"taken": True}
    # Nothing more is heard of the first one: a new one begins in its folder.
    again = Federated(tmp_path, num_rounds=1)
    assert again.coordinator.answer("a", {"do": "work"})["do"] == "wait"
    assert again.coordinator.answer("a", said) == {"taken": True}, "it knows it already"
    everywhere(adding(again.site("b"), 3.0, 5), adding(again.site("a"), 100.0, 5))
    again.join()
    for before, after in zip(
        model().parameters(), again.coordinator.model.parameters(), strict=True
    ):
        assert torch.allclose(after, before + 2.0)


def test_a_site_that_is_killed_gets_the_same_work_again(tmp_path):
    one = Federated(tmp_path, num_rounds=1)

    def killed():
        for _ in one.site("a").rounds(model()):
            return  # and never answers

    other = threading.Thread(target=adding(one.site("b"), 1.0, 10), daemon=True)
    other.start()
    killed()
    seen = []
    everywhere(adding(one.site("a"), 1.0, 10, seen))
    one.join()
    assert seen == [1]


@pytest.mark.proof
def test_who_drops_out_is_left_behind_and_a_late_joiner_comes_in(tmp_path):
    one = Federated(tmp_path, num_rounds=3, min_sites=2, round_s=1.5)
    began, joined = threading.Event(), []

    def dropping():
        for _ in one.site("gone").rounds(model()):
            began.set()
            return

    def late():
        assert began.wait(GUARD_S)
        adding(one.site("late"), 1.0, 10, joined)()

    everywhere(dropping, late, adding(one.site("a"), 1.0, 10), adding(one.site("b"), 1.0, 10))
    one.join()
    assert one.rounds[0][1]["sites"] == 2.0
    assert joined and min(joined) > 1


@pytest.mark.proof
def test_below_the_least_number_a_round_begins_anew(tmp_path):
    one = Federated(tmp_path, num_rounds=1, min_sites=2, round_s=1.0)
    tries = []

    def slow_at_first():
        mine, site = model(), one.site("b")
        for _ in site.rounds(mine):
            tries.append(1)
            if len(tries) == 1:
                threading.Event().wait(1.5)
            taken = site.submit(count=1)
            assert taken == (len(tries) > 1), "too late the first time"

    everywhere(adding(one.site("a"), 0.0, 1), slow_at_first)
    one.join()
    assert len(tries) >= 2 and len(one.rounds) == 1


def test_fedprox_pulls_towards_the_weights_the_round_began_with(tmp_path):
    one = Federated(tmp_path, num_rounds=1, min_sites=1)
    site, mine = one.site("a", prox=0.5), model()
    for _ in site.rounds(mine):
        assert float(site.proximal().detach()) == 0.0
        with torch.no_grad():
            for each in mine.parameters():
                each += 2.0
        loss = site.proximal()
        assert float(loss.detach()) == pytest.approx(
            0.25 * sum(4 * p.numel() for p in mine.parameters())
        )
        loss.backward()
        assert all(torch.allclose(p.grad, torch.ones_like(p)) for p in mine.parameters())
        site.submit(count=1)
    one.join()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"0.bias": torch.zeros(3)}, "has shape"),
        ({"0.bias": torch.full((8,), float("nan"))}, "not finite"),
        ({"extra": torch.zeros(1)}, "another model"),
        ({"0.bias": "x"}, "not all weights are tensors"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(tmp_path, change, word):
    one = Coordinator(model(), directory=tmp_path, num_rounds=1, **QUICK)
    weights = {**model().state_dict(), **change}
    said = {"do": "submit", "round": 1, "weights": weights, "count": 5, "metrics": {}}
    assert word in one.answer("a", said)["refused"]
    good = {**said, "weights": model().state_dict()}
    for count in (0, 10**400):
        assert "samples" in one.answer("a", {**good, "count": count})["refused"]
    assert "OverflowError" in one.answer("a", {**good, "count": float("inf")})["refused"]
    assert "AttributeError" in one.answer("a", {**good, "metrics": [1]})["refused"]
    assert one.answer("a", good) == {"taken": False}, "the control: only the round is not under way"


def answered(port, *messages, raw=b""):
    """What a coordinator says to a site that sends these."""
    with socket.create_connection(("127.0.0.1", port), GUARD_S) as peer:
        authenticate(peer, site_token("secret", "a").encode(), "a")
        for message in messages:
            wire.send(peer, message)
        peer.sendall(raw)
        return wire.receive(peer)


def test_three_hundred_silent_strangers_keep_no_site_out(tmp_path):
    one = Federated(tmp_path, num_rounds=1, min_sites=1)
    idle = [socket.create_connection(("127.0.0.1", one.port), GUARD_S) for _ in range(300)]
    everywhere(adding(one.site("a"), 0.0, 1))
    one.join()
    for peer in idle:
        peer.close()


def test_a_site_may_have_a_few_conversations_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator, "_TALKS_OF_SITE", 2)
    one = Federated(tmp_path, num_rounds=1, min_sites=1)
    idle = [socket.create_connection(("127.0.0.1", one.port), GUARD_S) for _ in range(3)]
    for peer in idle:
        authenticate(peer, site_token("secret", "b").encode(), "b")
    assert idle[2].recv(1) == b"", "the third is sent away"
    everywhere(adding(one.site("a"), 0.0, 1))
    for peer in idle:
        peer.close()
    one.join()


def test_a_site_cannot_claim_the_name_of_another(tmp_path):
    one = Federated(tmp_path, num_rounds=1, min_sites=1)
    thief = Site(f"127.0.0.1:{one.port}", name="a", token=site_token("secret", "b"), patience_s=20)
    with pytest.raises(TrainingError, match="not that of site a"):
        next(thief.rounds(model()))
    everywhere(adding(one.site("a"), 0.0, 1))
    one.join()


def test_what_a_peer_sends_is_bounded_and_its_mistakes_are_answered(tmp_path):
    one = Federated(tmp_path, num_rounds=1, min_sites=1)
    large = (1 << 33).to_bytes(8, "little")
    assert "at most" in answered(one.port, raw=large)["refused"]
    row = {"name": "w", "dtype": "float32", "shape": [8]}
    own = json.dumps({"tree": {"$tensor": 0}, "tensors": [row]})
    entry = {"dtype": "F32", "shape": [8], "data_offsets": [0, 0]}
    header = json.dumps({"__metadata__": {"phalanx": own}, "w": entry}).encode()
    body = len(header).to_bytes(8, "little") + header
    empty = len(body).to_bytes(8, "little") + body
    assert "without its bytes" in answered(one.port, raw=empty)["refused"]
    with pytest.raises(TrainingError, match="another model"):
        next(one.site("b").rounds(nn.Linear(2, 2)))
    everywhere(adding(one.site("b"), 0.0, 1))
    one.join()
    with pytest.raises(RestoreMismatch, match="another model"):
        Coordinator(nn.Linear(2, 2), directory=tmp_path, num_rounds=1, **QUICK)


def test_strangers_are_kept_out_and_mistakes_named(tmp_path):
    one = Federated(tmp_path, num_rounds=1, min_sites=1)
    with pytest.raises(TrainingError, match="token"):
        next(Site(f"127.0.0.1:{one.port}", name="a", token="guess").rounds(model()))
    with pytest.raises(SpecInvalid, match="directory"):
        Coordinator(model(), num_rounds=1, **QUICK)
    with pytest.raises(SpecInvalid, match="at least 1"):
        Coordinator(model(), directory=tmp_path, num_rounds=0, **QUICK)
    with pytest.raises(ValueError, match="host:port"):
        Site("nowhere", name="a", token="x")
    with pytest.raises(TrainingError, match=r"call site\.submit"):
        list(one.site("a").rounds(model()))
    everywhere(adding(one.site("a"), 0.0, 1))
    one.join()


def test_a_model_that_rotted_is_passed_over(tmp_path):
    one = Federated(tmp_path, num_rounds=2, min_sites=1)
    everywhere(adding(one.site("a"), 1.0, 1))
    one.join()
    files = sorted((tmp_path / "federation").glob("round-*"))
    assert [path.stem for path in files] == ["round-000001", "round-000002"]
    data = bytearray(files[-1].read_bytes())
    data[-1] ^= 1
    files[-1].write_bytes(data)
    assert Coordinator(model(), directory=tmp_path, num_rounds=2, **QUICK).rounds_done == 1
    files[0].write_bytes(b"")
    with pytest.raises(CheckpointCorrupt):
        Coordinator(model(), directory=tmp_path, num_rounds=2, **QUICK)
