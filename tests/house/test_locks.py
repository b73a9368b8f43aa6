"""Each requirements file names every package of an installation with its version and digests."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    "server": ["server", "search", "data", "crypto", "zstd", "grpc"],
    "train": ["server", "search", "data", "crypto", "zstd", "grpc", "train"],
    "ray": ["server", "search", "data", "crypto", "zstd", "grpc", "train", "ray"],
}
DIGEST = re.compile(r"--hash=sha256:[0-9a-f]{64}$")

pytestmark = pytest.mark.unit


def locked(text: str) -> dict[str, tuple[str, list[str]]]:
    """Version and digests of each package of a lock; the version is empty where it is not exact."""
    packages: dict[str, tuple[str, list[str]]] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        if not entry.strip() or entry.startswith("#"):
            continue
        words, *digests = re.split(r"\s+(?=--hash)", entry.strip())
        requirement = Requirement(words)
        exact = [part.version for part in requirement.specifier if part.operator == "=="]
        packages[canonicalize_name(requirement.name)] = (exact[0] if exact else "", digests)
    return packages


def faults(lock: str, constraints: dict[str, str], wanted: list[str]) -> list[str]:
    """Faults of a lock: names that are missing, versions that differ, packages without a digest."""
    packages = locked(lock)
    found = [
        f"{name} has no digest"
        for name, (_, digests) in packages.items()
        if not all(map(DIGEST.match, digests or [""]))
    ]
    found += [
        f"{name} has no exact version" for name, (version, _) in packages.items() if not version
    ]
    for name, (version, _) in packages.items():
        if constraints.get(name, version) != version:
            found.append(
                f"{name} is {version} in the lock and {constraints[name]} in constraints.txt"
            )
    for line in wanted:
        requirement = Requirement(line)
        version = packages.get(canonicalize_name(requirement.name), ("", []))[0]
        if not version or version not in requirement.specifier:
            found.append(f"pyproject.toml asks for {line}; the lock has {version or 'nothing'}")
    return found


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version.split(";")[0].strip() for name, version in pairs}


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_agrees_with_the_constraints_and_the_project(name):
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["project"]["dependencies"] + [
        line for extra in EXTRAS[name] for line in optional[extra]
    ]
    found = faults((ROOT / "requirements" / f"{name}.txt").read_text(), constraints(), wanted)
    assert not found, "run `make lock`: " + "; ".join(found)


def test_the_release_tools_are_locked_with_digests():
    text = (ROOT / "requirements" / "release.txt").read_text()
    assert not faults(text, {}, PROJECT["dependency-groups"]["release"])


def test_faults_of_a_lock_are_found():
    digest = "--hash=sha256:" + "0" * 64
    good = f"alpha==1.0 \\\n    {digest}\nbeta==2.0 ; sys_platform == 'linux' \\\n    {digest}\n"
    assert faults(good, {"alpha": "1.0"}, ["alpha>=1", "beta<3"]) == []
    assert faults(good, {"alpha": "1.1"}, []) == [
        "alpha is 1.0 in the lock and 1.1 in constraints.txt"
    ]
    assert faults("alpha==1.0\n", {}, []) == ["alpha has no digest"]
    assert faults(f"alpha>=1.0 \\\n    {digest}\n", {}, []) == ["alpha has no exact version"]
    assert faults(good, {}, ["gamma>=1"]) == [
        "pyproject.toml asks for gamma>=1; the lock has nothing"
    ]
    assert faults(good, {}, ["beta>=3"]) == ["pyproject.toml asks for beta>=3; the lock has 2.0"]
