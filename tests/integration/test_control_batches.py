"""Batches and arrays through HTTP: all or nothing, names, turns and the variables of elements."""

from __future__ import annotations

import pytest

from integration.rig import Rig, spec
from phalanx.cli.client.session import job_numbers, one_job
from phalanx.errors import Conflict, NotFound, SpecInvalid, UserError
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.services.lifecycle.assignments import contract_of, environment
from phalanx.store import jobs

pytestmark = pytest.mark.integration


def requests(*specs: dict[str, object]) -> list[SubmitRequest]:
    return [SubmitRequest(spec=spec(**one), owner="ada") for one in specs]


def test_a_batch_names_its_own_jobs_and_is_stored_once(rig: Rig) -> None:
    batch = requests(
        {"name": "report", "depends_on": {"afterany": "train"}},
        {"name": "train", "depends_on": "prepare"},
        {"name": "prepare"},
    )
    made = rig.client.submit_batch(batch, key="k" * 32).jobs
    assert [(one.name, one.state) for one in made] == [
        ("report", "waiting"),
        ("train", "waiting"),
        ("prepare", "queued"),
    ]
    assert rig.job(made[0].num).waits_for[0].job == made[1].num
    again = rig.client.submit_batch(batch, key="k" * 32).jobs
    assert [one.num for one in again] == [one.num for one in made]
    with pytest.raises(Conflict):
        rig.client.submit_batch(batch[:1], key="k" * 32)
    rig.client.stop(made[2].num)
    assert [rig.job(one.num).state for one in made] == ["queued", "cancelled", "cancelled"]


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        (({"name": "a", "depends_on": "b"}, {"name": "b", "depends_on": "a"}), "a → b → a"),
        (
            ({"name": "a"}, {"name": "a"}, {"name": "c", "depends_on": "a"}),
            "another job of the batch",
        ),
        (({"name": "a"}, {"name": "b", "depends_on": "nothing"}), "no such job"),
        (({"name": "a"}, {"name": "b", "priority": 101}), r"jobs\[1\].priority"),
        (({"name": "a", "array": "0-999"}, {"name": "b"}), "at most 1000 jobs"),
    ],
)
def test_a_batch_with_one_mistake_stores_nothing(
    rig: Rig, specs: tuple[dict[str, object], ...], says: str
) -> None:
    with pytest.raises(SpecInvalid, match=says):
        rig.client.submit_batch(requests(*specs))
    assert rig.client.jobs().jobs == []


def test_an_array_is_one_id_with_a_throttle(rig: Rig) -> None:
    args = ["python", "train.py", "--fold=${array.index}"]
    batch = requests(
        {"name": "fold", "array": "2-8:2%2", "run": args},
        {"name": "mean", "depends_on": "fold"},
    )
    *folds, mean = rig.client.submit_batch(batch).jobs
    first = folds[0].num
    assert [(one.name, one.array, one.array_index, one.state) for one in folds] == [
        ("fold-2", first, 2, "queued"),
        ("fold-4", first, 4, "queued"),
        ("fold-6", first, 6, "waiting"),
        ("fold-8", first, 8, "waiting"),
    ]
    assert rig.job(folds[2].num).reason.code == "waiting_for_turn"
    assert len(rig.job(mean.num).waits_for) == 4
    stored = rig.store.view(lambda tx: jobs.load(tx, folds[1].num))
    contract = contract_of(stored.facts)
    assert contract.roles[0].command.argv[-1] == "--fold=4"
    env, _ = environment(rig.platform, stored.facts, contract, contract.roles[0])
    assert {name: env[name] for name in env if "ARRAY" in name} == {
        "PHALANX_ARRAY": f"a-{first}",
        "PHALANX_ARRAY_COUNT": "4",
        "PHALANX_ARRAY_INDEX": "4",
        "SLURM_ARRAY_JOB_ID": str(first),
        "SLURM_ARRAY_TASK_COUNT": "4",
        "SLURM_ARRAY_TASK_ID": "4",
        "SLURM_ARRAY_TASK_MAX": "8",
        "SLURM_ARRAY_TASK_MIN": "2",
        "SLURM_ARRAY_TASK_STEP": "2",
    }
    rig.client.stop(first)
    assert [rig.job(one.num).state for one in folds[2:]] == ["queued", "waiting"]
    assert job_numbers(rig.client, [f"a-{first}"]) == [one.num for one in folds[::-1]]
    assert one_job(rig.client, f"a-{first}_6") == folds[2].num
    with pytest.raises(UserError, match="4 elements"):
        one_job(rig.client, f"a-{first}")
    with pytest.raises(NotFound):
        one_job(rig.client, f"a-{first}_7")


def test_an_array_needs_the_batch_route_and_one_element_does_not(rig: Rig) -> None:
    with pytest.raises(SpecInvalid, match="jobs/batch"):
        rig.submit(array="0-3")
    num = rig.submit(array="3")
    stored = rig.store.view(lambda tx: jobs.load(tx, num))
    assert contract_of(stored.facts).env["PHALANX_ARRAY_INDEX"] == "3"
    assert rig.client.submit_batch(requests({"array": "0-3"}), dry_run=True).jobs == []
