"""Every rule of the house finds a planted violation, and none in a clean tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from house import rules

pytestmark = pytest.mark.integration

CLEAN = '"""A module."""\n' + "\n" * rules.MIN_FILE
PLANTED: dict[str, dict[str, str]] = {
    "names": {"a.py": "class Start: ...", "b.py": "class Start: ..."},
    "circles": {
        "a.py": "from phalanx import b",
        "b.py": "def later():\n    from phalanx import c",
        "c.py": "if TYPE_CHECKING:\n    from phalanx.a import X",
    },
    "pairs": {
        "train/step/loop.py": "from phalanx.train.state import tree",
        "train/state/tree.py": "",
        "train/state/saving.py": "from phalanx.train.step.gates import Gate",
        "train/step/gates.py": "class Gate: ...",
    },
    "sizes": {"a.py": "def long():\n" + "    x = 1\n" * rules.MAX_FUNCTION},
    "fields": {
        "a.py": "@dataclass(frozen=True)\nclass Wide:\n"
        + "".join(f"    f{number}: int\n" for number in range(rules.MAX_FIELDS + 1))
    },
    "words": {"a.py": "# whoever holds the reservation"},
    "assign": {"train/a.py": "loader.course = 3"},
    "skips": {"a.py": "x = 1  # fmt: skip\n" * (rules.MAX_FORMAT_SKIPS + 1)},
}


def planted(root: Path, files: dict[str, str]) -> Path:
    source = root / "phalanx"
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CLEAN + text + "\n")
    return source


@pytest.mark.parametrize("rule", rules.RULES)
def test_the_repository_keeps_the_rule(rule: str) -> None:
    trees = [rules.ROOT / "src" / "phalanx", *([rules.ROOT / "tests"] if rule == "skips" else [])]
    found = rules.RULES[rule](*trees)
    assert not found, "\n".join(str(one) for one in found)


@pytest.mark.parametrize("rule", rules.RULES)
def test_a_planted_violation_is_found(tmp_path: Path, rule: str) -> None:
    assert rules.RULES[rule](planted(tmp_path, PLANTED[rule]))


@pytest.mark.parametrize("rule", rules.RULES)
def test_a_clean_tree_has_none(tmp_path: Path, rule: str) -> None:
    files = {"train/a.py": "from phalanx.kit import b\nself.x = 1", "kit/b.py": "class Start: ..."}
    assert rules.RULES[rule](planted(tmp_path, files)) == []


def test_more_sizes(tmp_path: Path) -> None:
    many = {f"room/m{number}.py": "" for number in range(rules.MAX_MODULES + 1)}
    long = {
        "long.py": "x = 1\n" * rules.MAX_FILE,
        "wide.py": "class W:\n" + "    x = 1\n" * rules.MAX_CLASS,
    }
    found = rules.sizes(planted(tmp_path, many | long))
    assert {one.what.split(" (")[0] for one in found} == {
        "16 modules",
        "842 lines",
        "W has 301 lines",
    }
    (tmp_path / "phalanx" / "long.py").write_text('"""Short."""\n')
    assert any("merge it" in one.what for one in rules.sizes(tmp_path / "phalanx"))


def test_the_lines_of_a_docstring_do_not_count(tmp_path: Path) -> None:
    text = (
        'def documented():\n    """What.\n'
        + "    More.\n" * rules.MAX_FUNCTION
        + '    """\n    return 1'
    )
    assert rules.sizes(planted(tmp_path, {"a.py": text})) == []


@pytest.mark.parametrize(
    "text",
    [
        "    f0: int  # a count\n",
        "    # a count\n    f0: int\n",
        '    f0: int\n    """A count."""\n',
    ],
)
def test_ways_to_document_a_field(tmp_path: Path, text: str) -> None:
    body = "@dataclass\nclass Wide:\n" + "".join(text.replace("f0", f"f{n}") for n in range(9))
    assert rules.fields(planted(tmp_path, {"a.py": body})) == []
