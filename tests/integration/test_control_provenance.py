"""What a job ran with, as its nodes report it: stored once, compared between attempts, nodes and jobs."""

from __future__ import annotations

from typing import Any

import pytest

from integration.rig import Rig, ScriptedSupervisor, spec
from phalanx.cli.terminal.provenance import _lines
from phalanx.core.contract.job import RepeatedJob
from phalanx.errors import NotFound, SpecInvalid
from phalanx.executors.protocol import SupervisorRef, SupervisorStatus
from phalanx.schemas.api.jobs import CloneRequest, SubmitRequest
from phalanx.schemas.api.provenance import MAX_DIFF_CHARS, SourceRequest
from phalanx.schemas.wire import supervision as wire
from phalanx.services.lifecycle.assignments import contract_of
from phalanx.services.lifecycle.polling import poll_step
from phalanx.services.lifecycle.provenance.images import store_images
from phalanx.store import jobs
from phalanx.store.provenance import rows
from phalanx.store.schema import provenance

pytestmark = pytest.mark.integration
SMALL = {"nodes": 1, "slots_per_node": 1}
NUMPY = {"numpy": "2.1.0", "torch": "2.13.0"}


def software(one: ScriptedSupervisor, packages: dict[str, str], **rest: Any) -> None:
    one.sync(
        wire.SoftwareReport(
            seq=one.next_seq(), generation=0, python="3.12.3", packages=packages, **rest
        )
    )


def inputs(one: ScriptedSupervisor, fingerprint: str, size: int = 10) -> None:
    row = wire.StagedInputReport(
        name="train",
        place="s3://bucket/train",
        num_files=2,
        size_bytes=size,
        fingerprint=fingerprint,
    )
    one.sync(wire.InputsReport(seq=one.next_seq(), generation=0, inputs=[row]))


def launch(rig: Rig, num: int, node: int = 0, attempt: int = 1) -> ScriptedSupervisor:
    rig.turn()
    one = rig.supervisor(num, node, attempt)
    one.ready()
    return one


def next_attempt(rig: Rig, one: ScriptedSupervisor) -> ScriptedSupervisor:
    """The supervisor is gone: the job goes on in another attempt."""
    rig.executor.bury(one.ref)
    rig.turn(1)
    return launch(rig, one.ref.job, attempt=one.ref.attempt + 1)


def told(rig: Rig, num: int, kind: str) -> list[str]:
    return [one.data["message"] for one in rig.client.history(num) if one.kind == kind]


def num_texts(rig: Rig) -> int:
    table = provenance.provenance_texts
    return len(rig.store.view(lambda tx: tx.conn.execute(table.select()).all()))


def test_software_is_stored_once_and_a_change_between_attempts_is_told(rig: Rig) -> None:
    num, other = rig.submit(resources=SMALL), rig.submit(resources=SMALL)
    first = launch(rig, num)
    software(first, NUMPY, torch="2.13.0", cuda="13.0")
    software(launch(rig, other), NUMPY, torch="2.13.0", cuda="13.0")
    assert num_texts(rig) == 1
    (found,) = rig.client.provenance(num).software
    assert (found.python, found.cuda, found.packages) == ("3.12.3", "13.0", NUMPY)
    assert [(one.attempt, one.node_rank) for one in found.nodes] == [(1, 0)]
    assert told(rig, num, "software_changed") == []
    second = next_attempt(rig, first)
    software(second, {"numpy": "2.2.0", "torch": "2.13.0"}, torch="2.13.0", cuda="13.0")
    (said,) = told(rig, num, "software_changed")
    assert "differs from that of attempt 1: packages.numpy 2.1.0 → 2.2.0" in said
    view = rig.client.provenance(num)
    assert [[one.attempt for one in some.nodes] for some in view.software] == [[1], [2]]
    assert [(one.name, one.before, one.after) for one in view.software_changes] == [
        ("packages.numpy", "2.1.0", "2.2.0")
    ]


def seeded(one: ScriptedSupervisor, seed: int, generation: int = 0) -> None:
    one.sync(wire.SeedReport(seq=one.next_seq(), generation=generation, seed=str(seed)))


def test_the_seed_that_the_script_gave_is_part_of_the_provenance(rig: Rig) -> None:
    num, other = rig.submit(resources=SMALL), rig.submit(resources=SMALL)
    assert (rig.client.provenance(num).seed, rig.client.provenance(num).seeds) == (None, [])
    first = launch(rig, num)
    seeded(first, 7)
    seeded(first, 7, generation=1)
    view = rig.client.provenance(num)
    assert view.seed == 7 and [(one.attempt, one.seed) for one in view.seeds] == [(1, 7)]
    assert ("seed", "7") in list(_lines(view))
    second = next_attempt(rig, first)
    seeded(second, 2**64 - 1)
    view = rig.client.provenance(num)
    assert view.seed == 2**64 - 1
    assert ("seed", f"7 from attempt 1\n{2**64 - 1} from attempt 2") in list(_lines(view))
    seeded(launch(rig, other), 8)
    changes = rig.client.provenance_diff(other, against=num).changes
    assert [(one.name, one.after) for one in changes] == [("seed", "8")]


def test_the_image_that_an_attempt_ran_in_is_recorded_with_its_digest(rig: Rig) -> None:
    num = rig.submit(resources={"nodes": 2, "slots_per_node": 1})
    first, peer = launch(rig, num), launch(rig, num, node=1)
    rig.turn(1)
    assert rig.client.provenance(num).images == []
    digests = [f"ghcr.io/acme/train@sha256:{one * 64}" for one in "abc"]
    rig.executor.images[first.ref] = digests[0]
    poll_step(rig.platform, rig.clock.now())
    # A pod that ends before it was seen running leaves its image with its end.
    rig.executor.images[peer.ref] = digests[1]
    rig.executor.bury(peer.ref)
    rig.executor.bury(first.ref)
    for _ in range(2):
        poll_step(rig.platform, rig.clock.now())
    rig.turn(1)
    second = launch(rig, num, attempt=2)
    rig.executor.images[second.ref] = digests[0]
    poll_step(rig.platform, rig.clock.now())
    found = rig.client.provenance(num).images
    places = {one.image: [(at.attempt, at.node_rank) for at in one.nodes] for one in found}
    assert places == {digests[0]: [(1, 0), (2, 0)], digests[1]: [(1, 1)]}
    said = [text for name, text in _lines(rig.client.provenance(num)) if name == "image"]
    assert f"{digests[1]} (attempt 1)" in said
    before = rig.store.view(lambda tx: rows.images_of(tx, num))
    poll_step(rig.platform, rig.clock.now() + 1)
    assert rig.store.view(lambda tx: rows.images_of(tx, num)) == before


def test_a_job_that_is_deleted_meanwhile_leaves_no_image(rig: Rig) -> None:
    ref = SupervisorRef(99, 1, 0)
    store_images(rig.platform, [SupervisorStatus(ref, True, image="a@sha256:b")], 1)
    assert rig.store.view(lambda tx: rows.images_of(tx, 99)) == []


def test_a_node_with_other_packages_than_the_first_is_told(rig: Rig) -> None:
    num = rig.submit(resources={"nodes": 2, "slots_per_node": 1})
    software(launch(rig, num), NUMPY)
    software(launch(rig, num, node=1), {**NUMPY, "extra": "1"})
    (said,) = told(rig, num, "software_changed")
    assert (
        "node rank 1 in attempt 1 differs from that of node rank 0: packages.extra absent → 1"
        in said
    )


def test_inputs_that_change_between_attempts_are_told_with_both_fingerprints(rig: Rig) -> None:
    num = rig.submit(data={"train": "s3://bucket/train"})
    first = launch(rig, num)
    inputs(first, "listing:aa")
    second = next_attempt(rig, first)
    inputs(second, "listing:bb", size=11)
    (said,) = told(rig, num, "inputs_changed")
    assert "2 files, 10 bytes, listing:aa → 2 files, 11 bytes, listing:bb" in said
    found = rig.client.provenance(num).inputs
    assert [(one.fingerprint, one.nodes[0].attempt) for one in found] == [
        ("listing:aa", 1),
        ("listing:bb", 2),
    ]
    # A report that comes again changes nothing.
    inputs(second, "listing:bb", size=11)
    assert len(rig.client.provenance(num).inputs) == 2


def test_the_text_of_a_difference_is_stored_once_without_credentials(rig: Rig) -> None:
    token = "ghp_" + "a1B2" * 9
    diff = f"--- a/train.py\n+++ b/train.py\n-key = '{token}'\n+lr = 0.1\n"
    source = SourceRequest(commit="a" * 40, diff_digest="b" * 64, num_changed=1, diff=diff)
    request = SubmitRequest(spec=spec(), source=source)
    num = rig.client.submit(request).job.num
    rig.client.submit(request)
    assert num_texts(rig) == 1
    found = rig.client.provenance(num).source
    assert found is not None and "+lr = 0.1" in found.diff and token not in found.diff
    assert not found.diff_cut
    again = rig.client.clone(num).job
    assert again is not None and rig.client.provenance(again.num).source == found
    # Jobs of one batch share the text of the first.
    short = source.model_copy(update={"diff": ""})
    both = [
        SubmitRequest(spec=spec(name=name), source=one)
        for name, one in (("one", source), ("two", short))
    ]
    made = rig.client.submit_batch(both).jobs
    assert {rig.client.provenance(one.num).source.diff for one in made} == {found.diff}
    long = source.model_dump() | {"diff": "x" * (MAX_DIFF_CHARS + 1)}
    much = request.model_copy(update={"source": SourceRequest.model_construct(**long)})
    with pytest.raises(SpecInvalid, match="diff"):
        rig.client.submit(much)


def test_two_jobs_are_compared_by_name(rig: Rig) -> None:
    num = rig.submit(resources=SMALL, env={"LR": "0.1"}, data={"train": "s3://bucket/train"})
    at_num = launch(rig, num)
    software(at_num, NUMPY)
    inputs(at_num, "listing:aa")
    same = rig.client.clone(num).job.num
    at_same = launch(rig, same)
    software(at_same, NUMPY)
    inputs(at_same, "listing:aa")
    assert rig.client.provenance_diff(same, num).same
    other = rig.client.clone(num, CloneRequest(set={"env.LR": "0.2"})).job.num
    at_other = launch(rig, other)
    software(at_other, {"torch": "2.13.0"})
    inputs(at_other, "listing:cc")
    view = rig.client.provenance_diff(other, num)
    assert not view.same
    assert [(one.name, one.before, one.after) for one in view.changes] == [
        ("data.train", "2 files, 10 bytes, listing:aa", "2 files, 10 bytes, listing:cc"),
        ("packages.numpy", "2.1.0", None),
        ("submitted.env.LR", "0.1", "0.2"),
    ]
    assert "differs from that of j-1" in told(rig, other, "software_changed")[0]
    assert "differs from that of j-1" in told(rig, other, "inputs_changed")[0]
    # Without another job, the one that it is a clone of.
    assert rig.client.provenance_diff(other) == view
    assert rig.client.provenance_diff(num).same
    with pytest.raises(NotFound):
        rig.client.provenance_diff(num, 99)


def test_a_clone_that_must_be_the_same_expects_what_the_job_found(rig: Rig) -> None:
    num = rig.submit(resources=SMALL, data={"train": "s3://bucket/train"})
    with pytest.raises(NotFound, match="neither its packages nor fingerprints"):
        rig.client.clone(num, CloneRequest(require_same=True))
    at_num = launch(rig, num)
    software(at_num, NUMPY, driver="570.1", platform="Linux-6")
    inputs(at_num, "listing:aa")
    plain = rig.client.clone(num).job.num
    strict = rig.client.clone(num, CloneRequest(require_same=True)).job.num
    rig.turn()
    assert rig.supervisor(plain).assignment.expects is None
    expects = rig.supervisor(strict).assignment.expects
    assert expects is not None and expects.job == "j-1"
    assert expects.facts == {
        "python": "3.12.3",
        "packages.numpy": "2.1.0",
        "packages.torch": "2.13.0",
        "data.train": "2 files, 10 bytes, listing:aa",
    }
    stored = rig.store.view(lambda tx: jobs.load(tx, strict))
    assert contract_of(stored.facts).repeats == RepeatedJob(num, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("packages", {f"p{at}": "1" for at in range(5001)}), ("python", "x" * 201)],
)
def test_a_report_without_limits_is_refused(rig: Rig, field: str, value: Any) -> None:
    num = rig.submit()
    one = launch(rig, num)
    report = wire.SoftwareReport.model_construct(seq=one.next_seq(), generation=0, **{field: value})
    assert one.post(one.request(report)).status_code == 422
