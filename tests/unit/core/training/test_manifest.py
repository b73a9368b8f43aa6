import json

import pytest

from phalanx.core.training.checkpoints import (
    Best,
    FileEntry,
    Keep,
    Manifest,
    Position,
    best_of,
    checkpoint_name,
    expired,
    is_checkpoint_name,
    lineages,
)
from support.manifests import manifest_of

pytestmark = pytest.mark.unit


LINE = "step-00000001-01000001"


def manifest(
    commit,
    *,
    generation=0,
    attempt=1,
    parent=None,
    step=None,
    suffix=None,
    root="",
    beginning=0,
    **metrics,
):
    suffix = suffix or f"{attempt:02x}{generation:02x}{commit:04x}"
    step = commit * 10 if step is None else step
    return manifest_of(
        step,
        name=checkpoint_name(step, suffix),
        position=Position(1, 0, 1, 64),
        attempt=attempt,
        generation=generation,
        commit=commit,
        parent=parent,
        world_size=3,
        reference_world=4,
        global_batch=48,
        created_at=1_700_000_000_000_000 + commit,
        files=(FileEntry("shard-00000/state.tensors", 12, "xxh3-128:00"),),
        metrics=metrics,
        root=root,
        beginning=beginning,
    )


def index(*manifests):
    return {one.name: one for one in manifests}


def test_json_and_back_is_the_same_manifest():
    one = manifest(3, parent="step-00000020-01000002", loss=0.25)
    assert Manifest.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_fields_of_a_later_release_are_ignored_but_another_schema_is_refused():
    body = manifest(1).to_json()
    assert Manifest.from_json({**body, "colour": "blue"}) == manifest(1)
    with pytest.raises(ValueError, match="schema 4"):
        Manifest.from_json({**body, "schema": 4})


@pytest.mark.parametrize("key", ["step", "files", "position", "commit"])
def test_a_manifest_without_a_field_is_refused(key):
    body = manifest(1).to_json()
    del body[key]
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json(body)


def test_names():
    assert checkpoint_name(1200, "0123abcd") == "step-00001200-0123abcd"
    assert not is_checkpoint_name("step-00001200-0123abcd.tmp")
    assert not is_checkpoint_name("../step-00001200-0123abcd")
    with pytest.raises(ValueError, match="name"):
        checkpoint_name(1, "xyz")


def test_newest_is_the_highest_commit_of_the_newest_generation_not_the_highest_step():
    first = manifest(1, step=10)
    old = manifest(9, step=900, parent=first.name)
    head = manifest(5, generation=1, step=100, parent=first.name)
    assert lineages(index(first, old, head))[0] is head


def test_the_heads_ancestors_come_before_a_fenced_off_branch():
    first = manifest(1)
    second = manifest(2, parent=first.name)
    zombie = manifest(7, parent=second.name)
    head = manifest(3, generation=1, parent=second.name)
    assert lineages(index(first, second, zombie, head)) == [head, second, first, zombie]


def test_a_chain_broken_by_retention_goes_on_with_what_is_left():
    head = manifest(9, parent="step-00000080-01000008")
    old = manifest(3)
    assert lineages(index(old, head)) == [head, old]


def test_retention_keeps_the_last_and_the_best():
    values = enumerate([0.5, 0.9, 0.9, 0.7, 0.6], start=1)
    saved = [manifest(n, root=LINE, acc=value) for n, value in values]
    keep = Keep(2, Best("acc", "max", 1))
    assert [one.commit for one in expired(index(*saved), keep)] == [1, 3]


def test_retention_never_lets_go_of_the_head():
    zombie = manifest(9, step=20, root=LINE)
    head = manifest(2, generation=1, step=20, root=LINE)
    assert expired(index(zombie, head), Keep(1)) == [zombie]


def test_a_branch_with_more_steps_than_the_head_stays_until_the_head_has_overtaken_it():
    branch = manifest(9, step=90, root=LINE)
    head = manifest(10, generation=1, step=40, root=LINE)
    assert expired(index(branch, head), Keep(1)) == []
    overtaken = manifest(11, generation=1, step=90, root=LINE)
    assert expired(index(branch, head, overtaken), Keep(1)) == [branch, head]


def test_a_start_from_step_0_neither_outranks_nor_retires_an_older_longer_line():
    old = [manifest(n, root=LINE) for n in (1, 2, 3)]
    new = [manifest(n, attempt=2, step=n, root="step-00000001-02000001") for n in (4, 5, 6)]
    assert lineages(index(*old, *new))[0] is old[-1]
    gone = expired(index(*old, *new), Keep(1), head=new[-1].name)
    assert gone == new[:-1]


def test_a_longer_line_that_began_anew_outranks_the_older_one_and_still_does_not_retire_it():
    old = [manifest(n, root=LINE) for n in (1, 2)]
    new = manifest(3, attempt=2, step=50, root="step-00000050-02000003")
    assert lineages(index(*old, new))[0] is new
    assert expired(index(*old, new), Keep(1)) == []


def test_the_owners_new_beginning_outranks_longer_lines_and_retires_none():
    old = [manifest(n, root=LINE) for n in (1, 2, 3)]
    new = manifest(4, attempt=2, step=1, root="step-00000001-02000004", beginning=1)
    assert lineages(index(*old, new)) == [new, *reversed(old)]
    assert lineages(index(*old, new), beginning=1) == [new]
    assert expired(index(*old, new), Keep(1)) == []


def test_the_last_checkpoints_are_counted_by_step():
    saved = [manifest(n, step=step, root=LINE) for n, step in enumerate((9, 18, 27, 27), start=1)]
    assert expired(index(*saved), Keep(3)) == [saved[2]]
    scored = [manifest(n, step=27, root=LINE, acc=0.5) for n in (1, 2)]
    assert expired(index(*scored), Keep(3, Best("acc"), every=9)) == [scored[0]]


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1},
        {"step": True},
        {"step": "9"},
        {"world_size": 0},
        {"metrics": []},
        {"parent": 5},
        {"position": {"epoch": 10.5}},
        {"files": [{"path": "x", "size_bytes": -1, "digest": "d:0"}]},
        {"files": 7},
    ],
)
def test_a_manifest_with_values_of_other_types_is_refused(change):
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json({**manifest(1).to_json(), **change})


def test_without_numbers_nothing_is_let_go():
    assert expired(index(manifest(1), manifest(2)), Keep()) == []


def test_best_ignores_what_is_not_a_number_and_prefers_the_older_among_equals():
    saved = [manifest(1, acc="nan"), manifest(2, acc=0.1), manifest(3, acc=0.1), manifest(4)]
    assert [one.commit for one in best_of(saved, Best("acc", "min", 5))] == [2, 3]
    assert not Best("acc").better(float("nan"), None)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"last": 0}, "keep.last"),
        ({"first": 1}, "first"),
        ({"best": {"metric": "a", "mode": "most"}}, "most"),
        ({"best": {"mode": "max"}}, "keep.best"),
    ],
)
def test_a_wrong_keep_is_refused_by_name(body, word):
    with pytest.raises(ValueError, match=word):
        Keep.from_json(body)
