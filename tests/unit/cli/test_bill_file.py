"""Billing exports as files: streams, compressed ones, and files that are none."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.cli.verbs.cost import bill_file
from phalanx.cli.verbs.cost.bill_file import bill_lines, lines_of
from phalanx.core.cost.bill_formats import FORMATS
from phalanx.errors import SpecInvalid, UserError
from phalanx.schemas.bill_mapping import load_bill_mapping

pytestmark = pytest.mark.unit
TEXT = "day,usd,kind,pool\n2026-11-01,1.5,slot,gpu\n\n2026-11-02,2,slot,gpu\n"


def put(folder: Path, content: str | bytes) -> Path:
    path = folder / "bill.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_plain_and_compressed_files_are_read(tmp_path: Path) -> None:
    found = list(bill_lines(put(tmp_path, TEXT), None))
    assert [one.nano_usd for one in found] == [1_500_000_000, 2_000_000_000]
    for other in (gzip.compress(TEXT.encode()), b"\xef\xbb\xbf" + TEXT.encode()):
        assert list(bill_lines(put(tmp_path, other), None)) == found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (TEXT + "2026-11-03,x,slot,gpu\n", "bill.csv, line 5: usd: 'x' is no number"),
        (TEXT + "2026-11-03,1\n", "line 5: it has 2 cells"),
        ("a,b\n1,2\n", "line 1: its columns are of no known format"),
        (b"\xff\xfe\x00a", "zero byte|not UTF-8"),
        (b"day,usd\n2026-11-01,\xff\n", "not UTF-8"),
        ("day,usd\n2026-11-01," + "1" * 200_000 + "\n", "it is no CSV"),
        ("day,usd\n" + "x" * (1 << 21), "a line of more than 1048576 characters"),
        (gzip.compress(TEXT.encode(), mtime=0)[:-12], "cannot be read"),
        (b"\x1f\x8bnothing", "cannot be read"),
    ],
    ids=[str(number) for number in range(10)],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, content, said: str) -> None:
    with pytest.raises(UserError, match=said):
        list(bill_lines(put(tmp_path, content), None))
    with pytest.raises(UserError, match="cannot be read"):
        list(bill_lines(tmp_path / "none.csv", None))


def test_a_file_is_not_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bill_file, "MOST_ROWS", 2)
    with pytest.raises(UserError, match="has more than 2 rows"):
        list(bill_lines(put(tmp_path, TEXT), None))


NAMES = sorted({name for one in FORMATS for name in (*one.cost, *one.begin, *one.end, *one.tags)})
cells = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["2026-11-01", "1.5", "USD", "NaN", "1e999999999", "1e-999999999", "-0", "٣", "1_0", "slot"]
    ),
    st.sampled_from(['{"phalanx-pool": 1}', "[" * 2000 + '"phalanx"', '[{"key": "phalanxpool"}]']),
    st.sampled_from(["9999-12-31T23:59:59-23:59", "0001-01-01", "2026-11-01T00:00:00+14:00"]),
)


@settings(max_examples=500, deadline=None)
@example("")
@example("usd,day\n1e-999999999,2026-11-01\n")
@given(
    st.one_of(
        st.text(max_size=200),
        st.builds(
            lambda names, rows: "\n".join(",".join(row) for row in [names, *rows]),
            st.lists(st.one_of(st.sampled_from(NAMES), st.text(max_size=8)), max_size=6),
            st.lists(st.lists(cells, max_size=6), max_size=4),
        ),
        st.builds(
            lambda form, rows: _written([[form.cost[0], form.begin[0], *form.tags], *rows]),
            st.sampled_from(FORMATS),
            st.lists(st.lists(cells, min_size=2, max_size=4), max_size=4),
        ),
    )
)
def test_no_text_makes_the_reader_fail(text: str) -> None:
    try:
        found = list(lines_of(io.StringIO(text, newline=""), "x", None))
    except UserError:
        return
    assert all(0 < len(one.id) <= 128 and len(one.place) <= 256 for one in found)
    assert all(0 <= one.from_at <= one.to_at for one in found)
    assert found == list(lines_of(io.StringIO(text, newline=""), "x", None))


def test_damaged_files_are_read_or_refused() -> None:
    rng = random.Random(7)
    good = _written([["id", "from", "to", "usd", "kind", "pool", "currency", "tags"]])
    good += '1,2026-11-01,2026-11-02T00:00:00Z,1.5,slot,gpu,USD,"{""phalanx-pool"": ""a""}"\r\n' * 3
    hard = [
        "1e9999999",
        "NaN",
        '"',
        '""',
        ",",
        "\n",
        "\r",
        "\x1f",
        "\u202e",
        "9" * 400,
        "[[",
        "\ud800",
    ]
    refused = 0
    for _ in range(3000):
        text = good
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice([*hard, ""]) + text[at + rng.randrange(3) :]
        try:
            found = list(lines_of(io.StringIO(text, newline=""), "x", None))
        except UserError:
            refused += 1
        else:
            assert all(abs(one.nano_usd) <= 10**18 and one.id for one in found)
    assert 1000 < refused < 3000


def _written(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


MAPPING = """
schema: 1
columns: {usd: Charge, from: Start, to: End, about: [What]}
rules:
  - match: {What: "gpu *"}
    kind: slot
    pool: gpu
    slot_type: h100
  - match: {What: "*"}
    kind: ignore
"""


def test_a_mapping_file_names_columns_and_rules(tmp_path: Path) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text(MAPPING)
    text = (
        "What,Start,End,Charge\ngpu hours,2026-11-01,2026-11-02,5\nlunch,2026-11-01,2026-11-02,9\n"
    )
    (found,) = bill_lines(put(tmp_path, text), load_bill_mapping(path))
    assert (found.place, found.slot_type, found.nano_usd) == ("gpu", "h100", 5_000_000_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("columns: {usd: A}", "columns.from"),
        ("rules: [{match: {}, kind: slot}]", "rules.0.match"),
        ("rules: [{match: {a: b}, kind: car}]", "rules.0.kind"),
        ("rules: [{match: {a: b}, kind: slot, store: s3://a}]", "store is of the kinds"),
        (
            "rules: [{match: {a: b}, kind: storage, pool: a}]",
            "pool and slot_type are of the kind slot",
        ),
        ("rule: []", "rule"),
        ("rules: [", "not valid YAML"),
    ],
)
def test_a_wrong_mapping_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text(text)
    with pytest.raises(SpecInvalid, match=said):
        load_bill_mapping(path)
