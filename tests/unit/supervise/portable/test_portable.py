"""Parts of the supervisor tree that need no tree."""

import ast
import json
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

import phalanx
from phalanx.errors import UserError
from phalanx.kit import interpreter
from phalanx.launch.command import PythonCommand
from phalanx.launch.tls import trust
from phalanx.supervise.packages import plan
from phalanx.supervise.portable import image_python
from phalanx.supervise.portable.build import RANK_PARTS, libraries_of, main
from phalanx.supervise.portable.copy import copy_tree
from phalanx.supervise.portable.copy import main as copy_main
from phalanx.supervise.portable.image_python import ImagePython, phalanx_python, probe, rank_python

pytestmark = pytest.mark.unit
SOURCE = Path(phalanx.__file__).parent
TREE = Path("/phalanx-tree")
# These run where there is no tree, or compare interpreters.
IN_PLACE = {
    "supervise/boot.py",  # a standby of the local executor
    "supervise/template.py",  # likewise
    "supervise/software_check.py",
    "supervise/packages/plan.py",
    "supervise/packages/interpreter.py",
    "supervise/portable/build.py",
    "checkpoint/removal/far.py",  # of the control plane
}


def program(path, text, mode=0o755):
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_tree_runs_its_own_loader_and_reads_no_variables_of_python():
    assert interpreter.command_in("/t", "-m", "x") == [
        *("/t/bin/loader", "--library-path", "/t/lib/native", "/t/bin/python", "-I", "-m", "x")
    ]


def test_what_supervisors_start_goes_through_one_argument_vector():
    rooms = [SOURCE / room for room in ("supervise", "launch", "checkpoint")]
    files = [path for room in rooms for path in room.rglob("*.py")]
    files.append(SOURCE / "executors" / "kubernetes" / "pod.py")
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in files
        if "sys.executable" in path.read_text()
    }
    assert found <= IN_PLACE


def test_the_parts_for_ranks_import_no_other_part_and_no_pydantic():
    names = {part.removesuffix(".py") for part in RANK_PARTS}
    files = [path for part in RANK_PARTS for path in SOURCE.glob(f"{part}/**/*.py")]
    files += [SOURCE / part for part in RANK_PARTS if part.endswith(".py")]
    assert len(files) > 300
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
            for one in modules:
                first, _, rest = one.partition(".")
                assert first not in ("pydantic", "httpx"), path
                assert first != "phalanx" or not rest or rest.split(".")[0] in names, path


@pytest.mark.parametrize(
    ("said", "runs", "warning"),
    [
        ("3.11.0", True, ""),
        ("3.14.2", True, ""),
        ("3.10.13", False, "is Python 3.10.13: ranks start as fresh interpreters"),
        ("2.7.18", False, "needs Python 3.11"),
    ],
)
def test_the_version_of_the_image_s_python_decides(tmp_path, said, runs, warning):
    python = program(tmp_path / "python", f"#!/bin/sh\necho {said}\n")
    found = probe(python, {}, TREE)
    assert found.runs_phalanx is runs
    assert warning in found.warning
    assert bool(found.warning) is not runs
    env = found.variables({"PYTHONPATH": "/mine"})
    assert env["PYTHONPATH"] == ("/mine:/phalanx-tree/ranks" if runs else "/mine")
    assert (phalanx_python(None, {**env, "PATH": str(tmp_path)}, TREE) == python) is runs


@pytest.mark.parametrize("text", ["#!/bin/sh\necho no\n", "#!/bin/sh\necho broken >&2; exit 3\n"])
def test_a_python_that_does_not_answer_is_told(tmp_path, text):
    found = probe(program(tmp_path / "python", text), {}, TREE)
    assert not found.runs_phalanx
    assert "could not be asked for its version" in found.warning


def test_ranks_use_the_python_of_their_command_else_the_first_of_the_path(tmp_path):
    command = PythonCommand("/p/python3", False, "script", "/x.py", (), "/")
    assert rank_python(command, {}) == "/p/python3"
    assert rank_python(None, {"PATH": str(tmp_path)}) is None
    python = program(tmp_path / "python3", "")
    assert rank_python(None, {"PATH": str(tmp_path)}) == python


def test_packages_in_an_image_without_python_are_refused(monkeypatch, tmp_path):
    data = {"python": {"wanted": {}, "root": str(tmp_path)}, "workdir": str(tmp_path)}
    monkeypatch.setattr(plan, "tree_root", lambda: TREE)
    found = plan.environment_plan(data, None, {"PATH": str(tmp_path)})
    assert "needs a Python in the image" in found.problem


def test_authorities_of_the_image_come_before_those_of_the_tree(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile=None: loaded.append(cafile))
    paths = ssl.get_default_verify_paths()._replace(cafile=None)
    bundle = tmp_path / "bundle.pem"
    trust._of_system(tmp_path, paths, [str(bundle)])
    bundle.write_text("")
    trust._of_system(tmp_path, paths, [str(bundle)])
    trust._of_system(tmp_path, paths._replace(cafile="/etc/x"), [str(bundle)])
    trust._of_system(None, paths, [str(bundle)])
    assert loaded == [str(tmp_path / "etc" / "cacert.pem"), str(bundle), None, None]


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "is no supervisor tree"),
        ({"files": {"../outside": "x"}}, "names a file outside the tree"),
        ({"files": {"/etc/passwd": "x"}}, "names a file outside the tree"),
        ({"files": {"gone": "x"}}, "gone is missing"),
    ],
)
def test_a_folder_that_is_no_whole_tree_is_not_copied(tmp_path, manifest, message):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    if manifest is not None:
        (source / "tree.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=message):
        copy_tree(source, target)
    assert list(target.iterdir()) == []


def test_only_a_tree_can_copy_itself(tmp_path, capsys):
    assert copy_main([str(tmp_path)]) == 1
    assert "is no supervisor tree" in capsys.readouterr().err


def test_a_folder_with_other_files_is_not_replaced(tmp_path, capsys):
    (tmp_path / "thesis.tex").touch()
    assert main([str(tmp_path)]) == 1
    assert "is not empty, and no tree" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").exists()


def test_a_missing_library_is_told(tmp_path, monkeypatch):
    ldd = program(tmp_path / "ldd", "#!/bin/sh\necho '\tlibx.so.1 => not found'\n")
    monkeypatch.setenv("PATH", str(Path(ldd).parent))
    with pytest.raises(UserError, match=r"needs libx\.so\.1, which this machine does not have"):
        libraries_of(tmp_path / "program")


def test_the_warm_process_needs_the_version_of_the_library():
    old = ImagePython("/p", TREE, (3, 10, 1))
    assert replace(old, version=image_python.LEAST).runs_phalanx
    assert not replace(old, version=(3, 10, 99)).runs_phalanx
