"""Rules of residency, and the stores that a URL lies in."""

from __future__ import annotations

import pytest

from phalanx.core.residency import (
    DataStore,
    ResidencyRule,
    allowed_by,
    outside,
    permits,
    store_of,
)

pytestmark = pytest.mark.unit

STORES = (
    DataStore("s3://eu-data", "eu"),
    DataStore("s3://eu-data/copies/us", "us"),
    DataStore("https://files.example.org/eu", "eu"),
    DataStore("/mnt/us", "us"),
)
EU = (ResidencyRule("project lab", ("eu", "ch")), ResidencyRule("the job", ("eu",)))


def test_a_job_may_use_what_all_rules_allow() -> None:
    assert allowed_by(()) is None
    assert allowed_by(EU) == ("eu",)
    assert allowed_by((*EU, ResidencyRule("project top", ("us",)))) == ()
    assert permits(None, ()) and permits(("eu",), (("residency", "eu"),))
    assert not permits(("eu",), ()) and not permits((), (("residency", "eu"),))


@pytest.mark.parametrize(
    ("url", "residency"),
    [
        ("s3://eu-data", "eu"),
        ("S3://EU-DATA/train/a.tar", "eu"),
        ("s3://eu-data/copies/us/a", "us"),
        ("s3://eu-data/copies/usa", "eu"),
        ("s3://eu-data-2/a", None),
        ("s3a://eu-data/a", None),
        ("s3://eu-data/copies/../../other/a", None),
        ("s3://eu-data/%2e%2e/other", None),
        ("https://files.example.org@other.example.org/eu/a", None),
        ("https://files.example.org\\@other/eu", None),
        ("https://files.example.org:8443/eu/a", None),
        ("https://files.example.org/eu//a", "eu"),
        ("https://files.example.org/us", None),
        ("/mnt/us/set", "us"),
        ("/mnt/eu/../us/set", "us"),
        ("/mnt/us-2", None),
        ("file:///mnt/us/set", "us"),
    ],
)
def test_the_store_of_a_url(url: str, residency: str | None) -> None:
    found = store_of(url, STORES)
    assert (None if found is None else found.residency) == residency


def test_stores_outside_are_named_with_the_rules() -> None:
    urls = {
        "data.a": "s3://eu-data/a",
        "data.b": "s3://eu-data/copies/us/b",
        "data.c": "gs://other/c",
        "data.d": "/scratch/d",
        "data.e": "/mnt/us/e",
    }
    found = {one.path: one.message for one in outside(urls, STORES, EU)}
    rules = "project lab allows eu, ch; the job allows eu"
    assert found == {
        "data.b": f"lies in store s3://eu-data/copies/us, residency us; {rules}",
        "data.c": f"lies in no store with a residency; {rules}: "
        "declare its store under `stores` of the project file",
        "data.e": f"lies in store /mnt/us, residency us; {rules}",
    }
    assert outside(urls, STORES, ()) == []
