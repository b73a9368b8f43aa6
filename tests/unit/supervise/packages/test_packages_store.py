"""Which environments a node keeps, who may use them, and what an installer's failure means."""

import json
import os

import pytest

from phalanx.core.reasons import Cause
from phalanx.supervise.packages.build import judge
from phalanx.supervise.packages.environments import RECORD, EnvironmentStore

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path):
    return EnvironmentStore(tmp_path / "python")


def built(store, digest, used_at_s=1000, size_bytes=None):
    with store.building(digest, lambda: None):
        folder = store.new(digest, "00000000")
        (folder / "module.py").write_text("x" * 10)
        store.commit(digest, folder, {})
    record = folder / RECORD
    if size_bytes is not None:
        record.write_text(json.dumps({"size_bytes": size_bytes}))
    os.utime(record, (used_at_s, used_at_s))
    return folder


def kept(store):
    return sorted(one.name for one in store.root.iterdir() if one.is_symlink())


def test_it_is_not_there_before_it_is_whole(store):
    with store.building("d1", lambda: None):
        folder = store.new("d1", "0000")
        assert store.hold("d1") is None
        store.commit("d1", folder, {})
    descriptor = store.hold("d1")
    assert descriptor is not None
    assert (store.path("d1") / RECORD).exists()
    os.close(descriptor)


def test_debris_is_cleared_by_the_next_build(store):
    with store.building("d1", lambda: None):
        left = store.new("d1", "dead")
        (left / "half.py").touch()
    with store.building("d1", lambda: None):
        assert not left.exists()
    # That of a content which nobody asks for again goes with the next look at all of them.
    with store.building("d2", lambda: None):
        other = store.new("d2", "dead")
    built(store, "d3")
    store.prune()
    assert not other.exists()
    assert kept(store) == ["d3"]


def test_a_build_in_progress_is_no_debris(store):
    with store.building("d1", lambda: None):
        folder = store.new("d1", "aaaa")
        store.prune()
        assert folder.exists()


def test_the_least_recently_used_go_first(store):
    for number in range(4):
        built(store, f"d{number}", used_at_s=1000 + number)
    os.close(store.hold("d0"))  # used just now
    assert store.prune(max_num=2) == ["d2", "d1"]
    assert kept(store) == ["d0", "d3"]
    assert sorted(one.name for one in store.root.iterdir() if one.is_dir()) == [
        "d0",
        "d0-00000000",
        "d3",
        "d3-00000000",
    ]


def test_size_counts_too(store):
    for number in range(3):
        built(store, f"d{number}", used_at_s=1000 + number, size_bytes=100)
    assert store.prune(max_bytes=250) == ["d0"]
    assert json.loads((built(store, "d9") / RECORD).read_text())["size_bytes"] > 0


def test_one_in_use_is_never_removed(store):
    built(store, "d1")
    using = store.hold("d1")
    assert store.prune(max_num=0) == []
    assert kept(store) == ["d1"]
    # The negative control: without its user it goes.
    os.close(using)
    assert store.prune(max_num=0) == ["d1"]
    assert store.hold("d1") is None


def test_the_second_builder_waits(store):
    waited = []
    with store.building("d1", lambda: None):
        import threading

        def second():
            with store.building("d1", lambda: waited.append("waits")):
                waited.append(store.target("d1") is not None)

        thread = threading.Thread(target=second)
        thread.start()
        while not waited:
            thread.join(0.01)
        store.commit("d1", store.new("d1", "0000"), {})
    thread.join(60)
    assert waited == ["waits", True]


def test_one_emptied_by_hand_is_built_again(store):
    import shutil

    shutil.rmtree(built(store, "d1"))
    assert store.target("d1") is None
    assert store.hold("d1") is None
    built(store, "d1")
    assert store.target("d1") is not None


@pytest.mark.parametrize(
    ("text", "cause", "why"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement a==9 (from versions: 1)\n"
            "ERROR: No matching distribution found for a==9\n",
            Cause.USER_ERROR,
            "No matching distribution found for a==9",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
            "ERROR: No matching distribution found for einops\n",
            Cause.START_FAILED,
            "No matching distribution found for einops",
        ),
        (
            "ERROR: Cannot install torch==1 and torch==2 because these package versions have conflicting "
            "dependencies.\n\nERROR: ResolutionImpossible: for help visit https://pip.pypa.io\n",
            Cause.USER_ERROR,
            "Cannot install torch==1 and torch==2 because these package versions have conflicting "
            "dependencies.",
        ),
        (
            "Using Python 3.11\nerror: No solution found when resolving dependencies\n"
            "  cause: Because a was not found in the package registry\n",
            Cause.USER_ERROR,
            "No solution found when resolving dependencies: Because a was not found in the package "
            "registry",
        ),
        (
            "error: Request failed after 3 retries\n  cause: Failed to fetch: http://h/simple/a/\n",
            Cause.START_FAILED,
            "Request failed after 3 retries: Failed to fetch: http://h/simple/a/",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            Cause.START_FAILED,
            "Could not install packages due to an OSError: [Errno 28] No space left on device",
        ),
        ("Segmentation fault\n", Cause.START_FAILED, ""),
    ],
)
def test_a_mistake_is_told_from_a_bad_network(text, cause, why):
    assert judge(text) == (cause, why)
