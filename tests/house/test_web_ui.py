"""Budgets of the web UI, and what its committed files may contain."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from phalanx.server.web.assets import INDEX, assets

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
ALL_BYTES, FIRST_BYTES = 150_000, 60_000
PACKAGES, LINES = 8, 6_000


def runtime_packages() -> dict[str, str]:
    """Name and version of every package that the build contains, indirect ones included."""
    locked = json.loads((WEB / "package-lock.json").read_text())["packages"]
    found = {}
    for path, one in locked.items():
        if path and not one.get("dev"):
            found[path.rpartition("node_modules/")[2]] = one["version"]
    return found


def packed(name: str) -> int:
    return len(gzip.compress(assets()[name].plain, 9, mtime=0))


def test_the_files_are_small() -> None:
    shipped = [name for name in assets() if not name.endswith(".txt")]
    assert sum(map(packed, shipped)) <= ALL_BYTES
    index = assets()[INDEX].plain.decode()
    first = [INDEX, *re.findall(r'(?:src|href)="\./([^"]+)"', index)]
    assert len(first) >= 4 and sum(map(packed, first)) <= FIRST_BYTES


def test_few_packages_and_few_lines() -> None:
    assert 0 < len(runtime_packages()) <= PACKAGES
    sources = [*WEB.glob("src/**/*.ts"), *WEB.glob("src/**/*.tsx")]
    written = [one for one in sources if one.name != "schema.d.ts"]
    assert sum(len(one.read_text().splitlines()) for one in written) <= LINES
    too_long = [one.name for one in written if len(one.read_text().splitlines()) > 400]
    assert too_long == []


def test_licences_of_what_is_shipped_are_shipped() -> None:
    said = assets()["THIRD_PARTY.txt"].plain.decode()
    for name, version in runtime_packages().items():
        assert re.search(rf"^{re.escape(name)} {re.escape(version)} \(", said, re.MULTILINE), name


def test_nothing_is_inline_absolute_or_foreign() -> None:
    index = assets()[INDEX].plain.decode()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=", index)
    assert not re.search(r'(?:src|href)="(?:/|https?:)', index)
    # Names of XML, and addresses in messages of packages that are never fetched.
    harmless = re.compile(r"https?://(?:www\.w3\.org/|preactjs\.com)")
    for name, one in assets().items():
        if name.endswith((".js", ".css")):
            text = harmless.sub("", one.plain.decode())
            assert "http://" not in text and "https://" not in text, name
            assert "eval(" not in text and "new Function" not in text, name


def test_packages_are_pinned() -> None:
    told = json.loads((WEB / "package.json").read_text())
    versions = {**told["dependencies"], **told["devDependencies"]}
    assert [one for one, at in versions.items() if not re.fullmatch(r"\d+\.\d+\.\d+", at)] == []
