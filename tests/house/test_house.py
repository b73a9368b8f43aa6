"""The house keeps its shape: floors, sizes, names, weight of the programs that must be light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "phalanx"
MODULES = sorted(
    path
    for path in SOURCE.rglob("*.py")
    if "migrations/versions" not in path.as_posix() and "_pb2" not in path.stem
)
BANNED_FILES = {"utils", "util", "common", "helpers", "helper", "base", "misc"}
BANNED_SUFFIXES = ("Manager", "Handler", "Helper")


def test_imports_point_down():
    found = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_module(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "every module says what it is for"
    assert path.stem not in BANNED_FILES, "name the thing"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith(BANNED_SUFFIXES), node.name
    for mark in ("TODO", "FIXME", "XXX"):
        assert mark not in text, f"{mark} is for the tracker"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("phalanx.cli.__main__", ("torch", "fastapi", "sqlalchemy", "numpy", "phalanx.sdk.client")),
        ("phalanx.supervise.__main__", ("torch", "fastapi", "sqlalchemy", "numpy")),
        ("phalanx.train", ("torch", "fastapi", "sqlalchemy", "numpy", "pydantic")),
        ("phalanx.server.app", ("torch", "alembic", "numpy")),
        ("phalanx.checkpoint", ("torch", "pydantic")),
        ("phalanx.train.run", ("torch._inductor", "torch.distributed.pipelining", "pydantic")),
    ],
)
def test_light_programs_do_not_import_what_is_heavy(module, heavy):
    code = (
        f"import sys, importlib; importlib.import_module({module!r}); "
        f"print([one for one in {heavy!r} if one in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
