"""Durations and sizes are read and written as people do."""

from __future__ import annotations

import random
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.kit.clock import backoff_s
from phalanx.kit.text import job_label, nearest, parse_job_label, random_hex
from phalanx.kit.units import (
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    to_rfc3339,
)
from phalanx.schemas.spec.fields import write_duration, write_size

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("250ms", 0.25),
        (3, 3),
        ("2w", 1209600),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-3s", True, -1])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match=r"."):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80 * 10**9), ("64GiB", 2**36), ("64G", 2**36), ("512", 512), (7, 7)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "3 parsecs", -1, True])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match=r"."):
        parse_size(text)


@given(st.integers(0, 10**9) | st.sampled_from([0.25, 0.5, 1.5, 90.125]))
def test_a_written_duration_reads_back_exactly(seconds):
    assert parse_duration(write_duration(seconds)) == seconds


@given(st.integers(0, 2**50))
def test_a_written_size_reads_back_exactly(size):
    assert parse_size(write_size(size)) == size


@given(st.integers(0, 4 * 10**15))
def test_times_survive_text(at):
    assert round(datetime.fromisoformat(to_rfc3339(at)).timestamp() * 1e6) == at


def test_what_people_read():
    times = [format_duration(s) for s in (0.35, 42, 185, 7380, 360000)]
    assert times == ["0.35s", "42s", "3m05s", "2h03m", "4d04h"]
    assert [format_size(n) for n in (512, 1_400_000, 80 * 10**9)] == ["512 B", "1.4 MB", "80.0 GB"]


def test_job_labels():
    assert job_label(12) == "j-12"
    assert [parse_job_label(text) for text in ("j-12", "12", "x", "j-", "-1")] == [
        12,
        12,
        None,
        None,
        None,
    ]


def test_the_nearest_word():
    assert nearest("resorces", ["run", "resources"]) == "resources"
    assert nearest("zzz", ["run", "resources"]) is None


def test_tokens_differ():
    assert random_hex(48) != random_hex(48)
    assert len(random_hex(7)) == 7


def test_backoff_grows_and_stays_below_its_ceiling():
    assert [backoff_s(n) for n in (0, 1, 2, 3, 100)] == [0.0, 1.0, 2.0, 4.0, 60.0]
    assert all(0.5 <= backoff_s(1, rng=random.Random(seed)) <= 1.0 for seed in range(20))
