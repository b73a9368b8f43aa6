"""What a job's section `python` asks for has one name for one content."""

import pytest

from phalanx.supervise.packages import requirements
from phalanx.supervise.packages.requirements import InvalidRequirements

pytestmark = pytest.mark.unit
BASE = {
    "version": "3.11.7",
    "platform": "linux",
    "torch": "2.13.0",
    "distributions": "d",
    "folders": [],
}


def ask(**fields):
    return {"requirements": None, "packages": [], "installer": "auto", "find_links": [], **fields}


def digest(workdir, want, code="c0de", base=BASE, python="/usr/bin/python3"):
    return requirements.digest(workdir, want, code, base, python)


def test_comments_order_and_spaces_do_not_count(tmp_path):
    (tmp_path / "one.txt").write_text("einops==0.8.1\n\n# a remark\nattrs >= 23 # why\n")
    (tmp_path / "two.txt").write_text("attrs   >= 23\neinops==0.8.1")
    (tmp_path / "three.txt").write_text("attrs >= \\\n 23\neinops==0.8.2")
    one, two, three = (
        digest(tmp_path, ask(requirements=f"{n}.txt")) for n in ("one", "two", "three")
    )
    assert one == two != three
    # Where a line stands does not count either.
    assert digest(tmp_path, ask(packages=["einops==0.8.1", "attrs >= 23"])) == one


def test_a_fragment_of_an_address_is_no_comment():
    assert requirements.lines_of("pkg @ https://host/a.zip#sha256=12") == [
        "pkg @ https://host/a.zip#sha256=12"
    ]


def test_files_that_are_named_count(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "all.txt").write_text("-r sub/more.txt\n-c sub/limits.txt\n")
    (tmp_path / "sub" / "more.txt").write_text("einops\n")
    (tmp_path / "sub" / "limits.txt").write_text("einops<1\n")
    before = digest(tmp_path, ask(requirements="all.txt"))
    assert "einops<1" in requirements.all_lines(tmp_path, ask(requirements="all.txt"))
    (tmp_path / "sub" / "limits.txt").write_text("einops<2\n")
    assert digest(tmp_path, ask(requirements="all.txt")) != before


@pytest.mark.parametrize(
    "change",
    [
        {"version": "3.12.0"},
        {"platform": "linux-aarch64"},
        {"torch": "2.13.1"},
        {"distributions": "other"},
    ],
)
def test_the_interpreter_below_counts(tmp_path, change):
    want = ask(packages=["einops"])
    assert digest(tmp_path, want, base={**BASE, **change}) != digest(tmp_path, want)


@pytest.mark.parametrize(
    "change",
    [{"installer": "pip"}, {"index_url": "https://one/simple"}, {"find_links": ["/wheels"]}],
)
def test_options_of_the_installer_count(tmp_path, change):
    assert digest(tmp_path, ask(packages=["a"], **change)) != digest(tmp_path, ask(packages=["a"]))


@pytest.mark.parametrize("line", ["./lib", "lib @ file:./lib", "wheels/a-1.0-py3-none-any.whl"])
def test_the_snapshot_counts_where_it_is_installed_from(tmp_path, line):
    want = ask(packages=[line])
    assert digest(tmp_path, want, code="one") != digest(tmp_path, want, code="two")
    plain = ask(packages=["einops"])
    assert digest(tmp_path, plain, code="one") == digest(tmp_path, plain, code="two")


def test_a_file_of_the_node_counts_by_size_and_time(tmp_path):
    wheel = tmp_path / "a.whl"
    wheel.write_text("one")
    want = ask(packages=[str(wheel)])
    before = digest(tmp_path / "work", want)
    wheel.write_text("longer")
    assert digest(tmp_path / "work", want) != before


def test_what_cannot_be_built_is_said_plainly(tmp_path):
    with pytest.raises(InvalidRequirements, match=r"gone\.txt cannot be read .*No such file"):
        digest(tmp_path, ask(requirements="gone.txt"))
    with pytest.raises(InvalidRequirements, match="editable"):
        digest(tmp_path, ask(packages=["-e ."]))
    (tmp_path / "loop.txt").write_text("-r loop.txt\n")
    assert digest(tmp_path, ask(requirements="loop.txt"))


def test_torch_is_known_by_its_name_alone():
    assert requirements.names_torch(["torch>=2.13"])
    assert requirements.names_torch(["a", "Torch"])
    assert not requirements.names_torch(["torchmetrics", "torch-geometric", "pytorch"])


def test_two_names_of_one_interpreter_are_one(tmp_path):
    (tmp_path / "bin").mkdir()
    real, other = tmp_path / "bin" / "python3", tmp_path / "bin" / "python"
    real.touch()
    other.symlink_to("python3")
    want = ask(packages=["a"])
    assert digest(tmp_path, want, python=str(real)) == digest(tmp_path, want, python=str(other))
    # Through another folder it is another environment.
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(real)
    assert digest(tmp_path, want, python=str(tmp_path / "venv" / "python")) != digest(
        tmp_path, want, python=str(real)
    )
