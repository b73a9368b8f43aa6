"""Values about software and inputs, and the text of a difference to a commit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract.provenance import (
    InputFingerprint,
    InstalledSoftware,
    differences,
    expected_facts,
    flat,
    in_words,
    input_facts,
)
from phalanx.core.contract.source_text import shown_difference

pytestmark = pytest.mark.unit
TOKEN = "ghp_" + "a1B2" * 9
KEY = f"-----BEGIN PRIVATE KEY-----\n{'A' * 64}\n-----END PRIVATE KEY-----"


def test_equal_software_has_one_digest_and_every_version_counts():
    one = InstalledSoftware(python="3.12.3", packages={"b": "2", "a": "1"})
    same = InstalledSoftware(python="3.12.3", packages={"a": "1", "b": "2"})
    assert one.digest == same.digest and InstalledSoftware.parse(one.text()) == one
    other = InstalledSoftware(python="3.12.3", packages={"a": "1", "b": "3"}, driver="570")
    assert other.digest != one.digest
    assert [str(change) for change in differences(one.facts(), other.facts())] == [
        "driver absent → 570",
        "packages.b 2 → 3",
    ]
    # A driver of another machine does not make a clone another run.
    assert [one.name for one in differences(expected_facts(one), expected_facts(other))] == [
        "packages.b"
    ]


def test_many_differences_are_told_shortly():
    changes = differences({f"p{at}": "1" for at in range(12)}, {})
    assert in_words(changes).endswith("and 4 more")


def test_inputs_are_compared_by_what_they_hold_and_not_by_their_place():
    here = InputFingerprint("train", "/data/a", 2, 10, "listing:aa")
    there = InputFingerprint("train", "s3://bucket/a", 2, 10, "listing:aa")
    assert differences(input_facts([here]), input_facts([there])) == []


def test_nested_facts_have_dotted_names_and_empty_ones_none():
    body = {"env": {"LR": "0.1"}, "commands": {"worker": ["a", "b"]}, "none": None, "no": []}
    assert dict(flat(body)) == {"env.LR": "0.1", "commands.worker": json.dumps(["a", "b"])}


def test_credentials_in_removed_and_added_lines_are_withheld():
    diff = (
        f"--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-t = '{TOKEN}'\n+lr = 0.1\n"
        "--- a/.env\n+++ b/.env\n@@ -1 +1,2 @@\n-API_TOKEN=short\n+LR=0.3\n"
        f"--- a/key.pem\n+++ /dev/null\n-{KEY}\n+after the key\n"
    )
    shown, cut = shown_difference(diff, 10_000)
    assert not cut
    for gone in (TOKEN, "API_TOKEN=short", "A" * 64):
        assert gone not in shown
    for kept in ("+lr = 0.1", "+LR=0.3", "-API_TOKEN=(withheld)", "+after the key"):
        assert kept in shown


@given(st.lists(st.text(alphabet="ab+-= /.", max_size=20), max_size=30), st.integers(1, 200))
def test_a_text_is_cut_after_a_line_and_never_longer_than_its_limit(lines, limit):
    text = "".join(f"{line}\n" for line in lines)
    shown, cut = shown_difference(text, limit)
    assert len(shown) <= limit and text.startswith(shown) and cut == (len(text) > limit)
    assert shown == "" or shown.endswith("\n")
