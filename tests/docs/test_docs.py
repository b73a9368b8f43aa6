"""The documentation says what the program does."""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
import yaml

from phalanx.cli.app import app
from phalanx.schemas.foreign.formats import convert
from phalanx.schemas.pools.pool_file import EXECUTORS, read_pools
from phalanx.schemas.pools.project_file import check_tree, read_projects
from phalanx.schemas.spec.document import validate_spec
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.study import validate_study
from phalanx.schemas.spec.study_checks import study_problems
from phalanx.train.programs.recipes.settings import MODELS
from phalanx.train.programs.recipes.settings import read as read_recipe

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands() -> list[tuple[str, str]]:
    """Every command line with `phalanx` in a shell block of any page."""
    found = []
    for page in PAGES:
        for language, body in BLOCK.findall(page.read_text()):
            if language not in ("sh", "bash", "console"):
                continue
            joined = body.replace("\\\n", " ")
            for line in joined.splitlines():
                line = line.strip().removeprefix("$ ")
                if re.match(r"(\.venv/bin/)?phalanx ", line):
                    found.append((named(page), line))
        if page.parent.name == "runbooks":  # what is to be done stands in sentences there
            inline = re.findall(r"`(phalanx [^`]+)`", BLOCK.sub("", page.read_text()))
            found += [(named(page), one) for one in sorted(set(inline))]
    return found


def test_generated_pages_are_current():
    found = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate_docs.py", "--check"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr + "\nrun `make docs`"


def test_the_index_leads_to_every_page():
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page != index}
    assert pages - listed == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{target} is not there"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_there_are_commands_to_check():
    assert len(commands()) > 30


@functools.cache
def root_command():
    return typer.main.get_command(app)


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_exist_with_their_options(page, line):
    words = shlex.split(line, comments=True)[1:]
    root = root_command()
    while words and words[0].startswith("--"):
        words = words[2:] if "=" not in words[0] and words[0] != "--help" else words[1:]
    if not words or words[0] == "--help":
        return
    command = root.commands.get(words[0])
    assert command is not None, f"{page}: no verb {words[0]}"
    while hasattr(command, "commands") and len(words) > 1 and words[1] in command.commands:
        words = words[1:]
        command = command.commands[words[0]]
    if getattr(command, "first", "") and len(words) > 1:
        command = command.commands[
            command.first
        ]  # `cost --by user` stands for `cost report --by user`
    if command.context_settings.get("allow_extra_args"):
        return  # a program of its own: it refuses what it does not know
    known = {"--help", "-h"}
    for parameter in command.params:
        known |= {*parameter.opts, *parameter.secondary_opts}
    for word in words[1:]:
        if word == "--":
            break
        if word.startswith("-") and not re.fullmatch(r"-\d+.*", word):
            assert word.split("=")[0] in known, f"{page}: {words[0]} has no {word}"


def test_every_example_spec_is_valid():
    specs = sorted((ROOT / "examples").rglob("*.yaml"))
    assert specs
    for path in specs:
        data = yaml.safe_load(path.read_text())
        if data.get("kind") == "study":
            assert study_problems(validate_study(data)) == [], path
        elif "pools" in data:
            assert read_pools(data, EXECUTORS).entries, path
        elif "projects" in data:
            assert check_tree(read_projects(data).projects) == [], path
        elif path.parent.name == "foreign":
            program = {"PROGRAM": "sums.py"} if "distributed_type" in data else {}
            found = convert(path.read_text(), path.name, program, local=True)
            assert found is not None and not found.problems, path
            assert validate_spec(found.spec), path
        elif "model" in data:
            assert read_recipe(["--config", str(path)])[0].model in MODELS, path
        else:
            assert isinstance(validate_spec(data), JobSpec), path


def test_nothing_speaks_of_this_machine():
    """No path of a developer's machine and no registry's name in what is committed."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("needs a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path == Path(__file__) or path.suffix in (".png", ".gz", ".bin", ".tensors"):
            continue
        text = path.read_text(errors="replace") if path.exists() else ""
        assert "/work/" + "main" not in text, name
        assert "/work/" + "shared" not in text, name
