"""Runbooks: their sections, and their commands, which run as they are printed against a control plane."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer.main
import typer.testing
import yaml
from click import Command
from typer.testing import CliRunner

from integration.rig import Rig, open_rig
from integration.test_control_pool_bounds import GrowingPool
from phalanx.cli.app import app
from phalanx.cli.client.session import Session
from phalanx.core.alerts.table import ALERTS, BY_NAME, MODE_MEANINGS, FailureMode
from phalanx.executors.routing import RoutedExecutor
from phalanx.schemas.wire import supervision as wire
from support.runbooks import PAGES, RUNBOOKS, Ran, RunbookBlock, blocks, run_block, words_of

pytestmark = pytest.mark.integration
#: They need ranks that answer: the game days run them on real jobs.
NEED_RANKS = (
    "pause",
    "stop",
    "stacks",
    "profile",
    "checkpoints verify",
    "checkpoints pin",
    "clone",
)
NEED_RANKS += ("doctor --network", "nodes drain", "resume")
HEADS = {"procedure": "Restart|Restore|Roll back", "playbook": "Playbook: "}
SECTIONS = ["When", "Check", "Act", "Escalate", "It is over when"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    pool = GrowingPool()  # one page is about the growth of pools
    with open_rig(tmp_path_factory.mktemp("rig") / "home", executor=pool) as one:
        object.__setattr__(one.platform, "executor", RoutedExecutor({"far": pool}))
        yield one


@pytest.fixture(scope="module")
def job(rig: Rig) -> str:
    """A job that trains, has failed once and has saved."""
    num = rig.submit()
    rig.turn()
    supervisor = rig.supervisor(num)
    supervisor.ready()
    supervisor.started()
    supervisor.step(0, 1)
    saved = wire.CheckpointReport(
        seq=supervisor.next_seq(),
        generation=0,
        at=supervisor.now(),
        step=1,
        epoch=0,
        path="/c/1",
        size_bytes=1,
        took_s=0.1,
    )
    supervisor.sync(saved)
    supervisor.log(0, b"a line\n")
    supervisor.failed()
    return f"j-{num}"


@pytest.fixture
def names(rig: Rig, job: str) -> dict[str, str]:
    """What the names of the pages stand for here."""
    node = rig.client.nodes()[0].id
    return {"j-12": job, "n3": node, "gpu": "far", "https://phalanx.example.com": "http://rig"}


@pytest.fixture(scope="module")
def command() -> Command:
    """The command line, which is made once: that takes longer than most verbs."""
    return typer.main.get_command(app)


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, ...], Ran]:
    """What commands have said: those of the pages change nothing, and many have the same."""
    return {}


@pytest.fixture
def run(rig: Rig, command: Command, answers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(typer.testing, "_get_command", lambda app: command)
    monkeypatch.setattr(Session, "client", lambda self: nullcontext(rig.client))
    monkeypatch.setenv("PHALANX_HOME", str(tmp_path))

    def verb(words: list[str]) -> Ran:
        key = tuple(words)
        if key not in answers:
            done = CliRunner().invoke(app, words)
            trouble = f"\n{done.exception!r}" if done.exit_code else ""
            answers[key] = done.exit_code, done.output + trouble
        return answers[key]

    return verb


def needs_ranks(words: list[str]) -> bool:
    return " ".join(words).startswith(NEED_RANKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_run_as_they_are_printed(page: Path, names, run) -> None:
    for block in blocks(page.stem):
        commands = tuple(one for one in block.commands if not needs_ranks(words_of(one, names)))
        assert list(run_block(RunbookBlock(block.page, commands, ()), names, run)) == []


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("phalanx recover j-12", "`phalanx recover j-12` ended with"),
        ("phalanx show j-12 --evens", "ended with 2"),
        ("phalanx show j-999", "ended with"),
    ],
)
def test_a_command_that_does_not_run_is_told(printed: str, said: str, names, run) -> None:
    (found,) = run_block(RunbookBlock("PhalanxDown", (printed,), ()), names, run)
    assert said in found


def test_output_that_is_not_as_printed_is_told(names, run) -> None:
    def told(*lines: str) -> list[str]:
        block = RunbookBlock("PhalanxDown", ("phalanx show j-12",), lines)
        return list(run_block(block, names, run))

    assert told("rank_failed … recovering … SIGKILL") == []
    (found,) = told("j-12", "rank_failed", "rank_failed")  # in this order, each once
    assert "is not in the output" in found
    with pytest.raises(AssertionError, match="only commands of phalanx"):
        words_of("rm -r checkpoints", names)
    with pytest.raises(AssertionError, match="nothing stands for s3"):
        words_of("phalanx checkpoints list s3://ckpt/vision", names)


def test_every_failure_mode_has_alerts_and_stands_in_the_index() -> None:
    text = (RUNBOOKS / "index.md").read_text()
    assert set(MODE_MEANINGS) == set(FailureMode) - {FailureMode.NONE}
    for mode in MODE_MEANINGS:
        signals = [one.name for one in ALERTS if one.mode is mode]
        (row,) = re.findall(rf"^\| {mode.value} \|.*Phalanx.*$", text, re.M)
        assert signals and all(f"({name}.md)" in row for name in signals)
        assert len(re.findall(rf"^\| {mode.value} \| ", text, re.M)) == 2  # and the answer to it


def test_the_index_leads_to_every_page_that_is_not_of_an_alert() -> None:
    text = (RUNBOOKS / "index.md").read_text()
    for page in PAGES:
        if page.stem not in BY_NAME and page.stem != "index":
            assert f"({page.name})" in text


@pytest.mark.parametrize("kind", HEADS)
def test_procedures_and_playbooks_have_all_sections(kind: str) -> None:
    found = [page for page in PAGES if f"\n{kind}: " in page.read_text()]
    assert len(found) == 3
    for page in found:
        _, head, body = page.read_text().split("---\n", 2)
        name = page.stem.removeprefix("playbook-")
        assert yaml.safe_load(head) == {kind: name, "owner": "platform"}
        assert re.match(rf"\n# ({HEADS[kind]})", body)
        assert re.findall(r"^## (.+)$", body, re.M) == SECTIONS


def test_there_are_three_checklists_with_boxes() -> None:
    text = (RUNBOOKS / "checklists.md").read_text()
    lists = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert list(lists) == ["Pre-production", "Production", "Incident"]
    assert all(body.count("* [ ]") >= 8 for body in lists.values())
