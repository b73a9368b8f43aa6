"""SkyPilot, dstack and Accelerate files: how they are told, what `--set` does, and what they name."""

from __future__ import annotations

import pytest

from phalanx.errors import SpecInvalid
from phalanx.schemas.foreign.formats import convert
from phalanx.schemas.foreign.rules import Conversion
from phalanx.schemas.foreign.tasks.skypilot import OURS_ONLY, TABLE
from phalanx.schemas.spec.job import JobSpec
from phalanx.schemas.spec.roles import Resources

pytestmark = pytest.mark.unit
SKY = """name: t
num_nodes: 2
resources: {accelerators: "A100:2"}
envs: {TOKEN: , STEPS: "3"}
run: |
  prepare --token $TOKEN
  torchrun --nproc_per_node=2 train.py --steps $STEPS
"""
CONFIG = "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 2}\n"


def converted(text: str, **values: str) -> Conversion:
    found = convert(text, "job.yaml", values)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "run: python train.py\n",
        "name: a\nrun: python train.py\nresources: {accelerators: 8}\n",
        "schema: 1\nnum_nodes: 2\nrun: x\n",
        "run: x\nenv: {A: b}\nenvs: {A: b}\n",
        "run: x\nsetup: y\nresources: {nodes: 2, accelerator: H100}\nsecrets: [TOKEN]\n",
        "run: x\nnum_processes: 2\nmixed_precision: no\n",
        "a: [",
        "",
    ],
)
def test_a_job_spec_is_never_read_as_a_file_of_another_tool(text: str) -> None:
    assert convert(text, "job.yaml") is None


def test_the_keys_that_tell_a_job_spec_are_those_of_its_model() -> None:
    theirs = {rule.path.partition(".")[0] for rule in TABLE.rules}
    assert set(JobSpec.model_fields) & theirs == {
        "name",
        "workdir",
        "pool",
        "resources",
        "setup",
        "run",
        "secrets",
    }
    assert {"schema", "class", "framework", "env"} <= OURS_ONLY
    assert not ({"cloud", "use_spot", "image_id", "any_of"} & set(Resources.model_fields))


def test_set_gives_a_variable_its_value_and_replaces_no_text() -> None:
    found = converted(SKY, TOKEN="hf_secret", STEPS="9")
    assert not found.problems
    assert found.spec["env"] == {"TOKEN": "hf_secret", "STEPS": "9"}
    assert "hf_secret" not in f"{found.spec['run']} {found.spec['setup']}"
    with pytest.raises(SpecInvalid, match="--set OTHER: the file has no such placeholder"):
        converted(SKY, TOKEN="x", OTHER="1")
    (said,) = map(str, converted(SKY).problems)
    assert said.startswith("job.yaml, line 4: envs.TOKEN: has no value; add --set TOKEN=VALUE")


def test_a_launcher_with_a_configuration_is_replaced_when_the_file_is_there() -> None:
    text = SKY.replace("TOKEN: , ", "").replace(
        "torchrun --nproc_per_node=2", "accelerate launch --config_file=ds.yaml"
    )
    files = {"ds.yaml": CONFIG, "bad.yaml": "distributed_type: TPU\n"}
    found = convert(text, "job.yaml", read_file=files.get)
    assert found is not None
    assert not found.problems
    assert found.spec["env"]["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "2"
    assert found.spec["resources"]["slots_per_rank"] == 1
    for other in ("bad.yaml", "away.yaml"):
        once = convert(text.replace("ds.yaml", other), "job.yaml", read_file=files.get)
        assert once is not None
        assert not once.problems
        assert f"--config_file={other}" in once.spec["run"][-1]
        assert once.spec["resources"]["slots_per_rank"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SKY.replace("num_nodes: 2", "num_node: 2"), "line 2: num_node: unknown key; did you mean"),
        (SKY.replace("A100:2", "A100:0.5"), "must be TYPE:COUNT with a whole number"),
        (
            SKY.replace("run: |", "run: |\n  echo $SKYPILOT_CLUSTER_INFO"),
            "line 6: run: SKYPILOT_CL",
        ),
        (SKY.replace("name: t", "name: t\nworkdir: /abs"), "line 2: workdir: must be relative"),
        (
            "type: task\ncommands: [x]\nresources: {gpu: '?'}\n",
            "line 3: resources.gpu: must be COUNT",
        ),
        ("type: task\nnodes: 2\n", "line 1: commands: is required"),
        ("type: task\ncommands: [x]\nenv: ['1=2']\n", "line 3: env: must be a list of NAME=VALUE"),
        (
            "type: task\ncommands: [x]\nmax_duration: long\n",
            "line 3: max_duration: must be a duration",
        ),
        (
            CONFIG.replace("zero_stage: 2", "stage: 2"),
            "line 3: deepspeed_config.stage: unknown sett",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_line(text: str, said: str) -> None:
    problems = [str(one) for one in converted(text).problems]
    assert any(said in one for one in problems), problems


def test_the_program_of_a_configuration_is_required_once() -> None:
    (said,) = map(str, converted(CONFIG).problems)
    assert "add --set PROGRAM='train.py ARGUMENTS'" in said
    found = converted(CONFIG, PROGRAM="-m tool.train 'a b'")
    assert found.spec["run"] == ["python", "-u", "-m", "tool.train", "a b"]
    assert found.spec["env"]["ACCELERATE_USE_DEEPSPEED"] == "true"
