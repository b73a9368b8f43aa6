"""The parts of the generated references that read source code, and the words of the documentation."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import typer.main

from house import rules
from phalanx.cli.app import app
from phalanx.core.jobs.model import JobState
from phalanx.core.metrics.catalogue import CATALOGUE
from phalanx.schemas.spec.document import JobSpec

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import api_reference  # noqa: E402

GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text()
TERMS = {
    term.strip()
    for entry in re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, re.M)
    for term in entry.split(",")
}
#: Nouns that the glossary replaces, and pronouns for persons.
BANNED = re.compile(
    rf"(?<![a-z])(?:{'|'.join(rules.BANNED)})(?![a-z])|{rules.PRONOUNS.pattern}", re.IGNORECASE
)
#: Pages that keep the words of their time, or are written from docstrings.
EXEMPT = ("proof/notes", "decisions/")
GENERATED = "Written by scripts/generate_docs.py"
WRITTEN = [
    page
    for page in [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    if not any(part in page.as_posix() for part in EXEMPT) and GENERATED not in page.read_text()
]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_words_of_the_glossary(page: Path) -> None:
    assert [word[0] for word in BANNED.finditer(page.read_text())] == []


def test_the_check_of_words_finds_a_planted_word() -> None:
    found = [word[0] for word in BANNED.finditer("a Hole for whoever is the hero, a whole estate")]
    assert found == ["Hole", "whoever", "hero", "estate"]


def test_nouns_of_the_command_line_have_an_entry() -> None:
    root = typer.main.get_command(app)
    groups = {name for name, command in root.commands.items() if hasattr(command, "commands")}
    nouns = {*groups, "checkpoints", "secrets", "profile"} - {"bench"}
    assert {noun for noun in nouns if not {noun, noun.removesuffix("s")} & _words()} == set()


def test_sections_of_the_spec_and_states_have_an_entry() -> None:
    words = _words()
    for name in (
        "priority",
        "labels",
        "roles",
        "framework",
        "checkpoint",
        "recovery",
        "stall",
        "secrets",
    ):
        assert name in JobSpec.model_fields
        assert {name, name.removesuffix("s")} & words, name
    entry = next(line for line in GLOSSARY.splitlines() if line.startswith("| **state**"))
    assert {state.value for state in JobState} <= set(re.findall(r"`(\w+)`", entry))


def _words() -> set[str]:
    return {word for term in TERMS for word in (term, *term.split())}


def test_a_term_has_one_entry_in_a_section() -> None:
    for section in GLOSSARY.split("\n## "):
        terms = re.findall(r"^\| \*\*(.+?)\*\* \|", section, re.M)
        assert len(terms) == len(set(terms))


def test_docstrings_are_split_into_text_and_sections() -> None:
    text, found = api_reference.sections(
        "Do it.\n\nMore.\n\nArgs:\n    one (int): The first,\n        on two lines.\n"
        "    two: The second.\n\n"
        "Raises:\n    UserError: When it is wrong.\n"
    )
    assert text == "Do it.\n\nMore."
    assert found == {
        "Args": [("one", "The first, on two lines."), ("two", "The second.")],
        "Raises": [("UserError", "When it is wrong.")],
    }


def test_signatures_have_defaults_and_no_self() -> None:
    short = ast.parse("def f(self, a: int, *rest: str, b: float = 1.0, **more) -> None: ...").body[
        0
    ]
    assert api_reference.signature(short) == "f(a: int, *rest: str, b: float = 1.0, **more) -> None"
    keyword = ast.parse("def f(*, a=1): ...").body[0]
    assert api_reference.signature(keyword) == "f(*, a=1)" or "a = 1" in api_reference.signature(
        keyword
    )


@pytest.mark.parametrize("module", ["batch_size", "federated", "folders", "jax", "readers"])
def test_every_public_name_of_the_library_has_an_entry(module: str) -> None:
    text = (ROOT / "docs" / "reference" / "python-library.md").read_text()
    section = text.partition(f"\n## phalanx.train.{module}\n")[2].partition("\n## ")[0]
    names = api_reference._exported(api_reference._parsed(f"train/{module}"))
    assert names
    assert [name for name in names if f"\n### {name}\n" not in section] == []


def test_tables_are_written_between_their_markers(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("x\n<!-- generated: t -->\nold\n<!-- end -->\ny\n")
    new = api_reference.with_tables(page, {"t": "| a |"})
    assert new == "x\n<!-- generated: t -->\n\n| a |\n\n<!-- end -->\ny\n"
    with pytest.raises(SystemExit, match="no marker"):
        api_reference.with_tables(page, {"u": ""})


def test_every_metric_family_of_the_catalogue_has_a_row_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    catalogue = page.partition("\n## Catalogue\n")[2]
    rows = re.findall(r"^\| `(\w+)[{`]", catalogue, re.M)
    assert sorted(rows) == sorted(one.exported for one in CATALOGUE.values())
