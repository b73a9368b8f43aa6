"""Batch scripts of Slurm as job specs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import SpecInvalid
from phalanx.schemas.foreign.formats import convert
from phalanx.schemas.foreign.rules import Conversion
from phalanx.schemas.spec.document import resolved, validate_spec

pytestmark = pytest.mark.unit
HEAD = "#!/bin/bash\n#SBATCH --job-name=llm\n"
TASK = (
    "export SLURM_PROCID=$RANK SLURM_LOCALID=$LOCAL_RANK SLURM_NODEID=$GROUP_RANK "
    "SLURM_NTASKS=$WORLD_SIZE SLURM_NPROCS=$WORLD_SIZE SLURM_NNODES=$GROUP_WORLD_SIZE "
    "SLURM_JOB_NUM_NODES=$GROUP_WORLD_SIZE SLURM_NTASKS_PER_NODE=$LOCAL_WORLD_SIZE\n"
)


def converted(text: str, local: bool = False) -> Conversion:
    found = convert(text, "job.sbatch", local=local)
    assert found is not None
    return found


def test_directives_and_the_command_of_srun_become_a_spec() -> None:
    found = converted(
        HEAD
        + """#SBATCH -N 4 --ntasks-per-node=8   # eight GPUs
#SBATCH --gres=gpu:a100:8
#SBATCH -c 12
#SBATCH --mem=480G
#SBATCH -t 1-12:30
#SBATCH --array=0-3%2
#SBATCH --signal=B:USR1@120
#SBATCH --export=ALL,HF_HOME=/data/hf
#SBATCH -p batch
module load cuda
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node_ip=$(srun --nodes=1 --ntasks=1 hostname --ip-address)
pip install -r requirements.txt
srun --cpu-bind=none python train.py --id $SLURM_PROCID
"""
    )
    assert not found.problems, found.problems
    assert found.spec == {
        "schema": 1,
        "name": "llm",
        "run": [
            "bash",
            "-c",
            TASK + "module load cuda\nexec python train.py --id $SLURM_PROCID",
        ],
        "setup": "module load cuda\npip install -r requirements.txt",
        "resources": {
            "nodes": 4,
            "slots_per_node": 8,
            "slots_per_rank": 1,
            "accelerator": "a100",
            "cpus": 96,
            "memory": 480 * 2**30,
        },
        "max_duration": "131400s",
        "array": "0-3%2",
        "grace": "120s",
        "env": {"HF_HOME": "/data/hf"},
    }
    spec = validate_spec(found.spec)
    assert validate_spec(resolved(spec)) == spec
    dropped = [one.text for one in found.warnings]
    assert dropped.count("Phalanx sets the addresses and numbers of ranks") == 2
    assert "write `pool:`, `project:` and `priority:`" in dropped


def test_torchrun_below_srun_starts_its_own_number_of_ranks() -> None:
    found = converted(
        HEAD
        + """#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE \\
  --rdzv_endpoint $head_node_ip:29500 train.py
"""
    )
    assert not found.problems
    resources = {"nodes": 2, "slots_per_node": 4, "slots_per_rank": 1}
    assert found.spec["resources"] == resources
    assert found.spec["run"][2].endswith("\nexec python -u train.py")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:10", 1810),
        ("2:30:10", 9010),
        ("1-2", 93_600),
        ("1-2:30", 95_400),
        ("1-2:30:10", 95_410),
    ],
)
def test_six_forms_of_time(text: str, seconds: int) -> None:
    found = converted(f"{HEAD}#SBATCH --time={text}\npython a.py\n")
    assert found.spec["max_duration"] == f"{seconds}s"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("#SBATCH --nodes=two\npython a.py", "line 3: nodes: must be a number from 1 to"),
        ("#SBATCH --nodes=99999999\npython a.py", "line 3: nodes: must be a number"),
        ("#SBATCH --nodes=2\npython a.py", "the script has 0 srun lines for 2 nodes"),
        ("srun a\nsrun b", "the script has 2 srun lines"),
        ("srun a | sort", "line 3: srun: must be a command of its own"),
        ("srun a\npython b.py", "line 4: python b.py: commands after srun do not run"),
        ("#SBATCH --node=2\npython a.py", "line 3: node: unknown key; did you mean nodes?"),
        (
            "#SBATCH --dependency=afterok:12\npython a.py",
            "line 3: dependency: numbers of Slurm jobs",
        ),
        ("#SBATCH hetjob\npython a.py", "line 3: #SBATCH hetjob: burst buffers and heterogeneous"),
        ("#BB create\npython a.py", "line 3: #BB create: burst buffers"),
        ("#SBATCH --mem=lots\npython a.py", "line 3: mem: must be a size"),
        ("#SBATCH --gres=tpu:4\npython a.py", "line 3: gres: only gpu"),
        ("#SBATCH --time=soon\npython a.py", "line 3: time: must be MINUTES"),
        ("#SBATCH --chdir=/scratch\npython a.py", "line 3: chdir: must be relative"),
        ("#SBATCH --export=HOME\npython a.py", "line 3: export: HOME has no value"),
        ("#SBATCH --job-name='x\npython a.py", "line 3: --job-name='x: cannot be read"),
        ("#SBATCH --nodes\npython a.py", "line 3: nodes: needs a value"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_line(lines: str, said: str) -> None:
    problems = [str(one) for one in converted(f"{HEAD}{lines}\n").problems]
    assert any(said in one for one in problems), problems


def test_a_directive_after_the_first_command_has_no_effect() -> None:
    found = converted(f"{HEAD}python a.py\n#SBATCH --nodes=4\n")
    assert [one.line for one in found.warnings if "after the first command" in one.text] == [4]
    assert found.spec["resources"]["nodes"] == 1


def test_a_script_without_directives_is_no_batch_script() -> None:
    assert convert("#!/bin/bash\npython a.py\n", "a.sh") is None


LINES = st.sampled_from(
    [
        "#SBATCH -N2",
        "#SBATCH --gpus=a:b:c",
        "#SBATCH -n 3 -c",
        "#SBATCH --mem=-1",
        "srun a",
        "for x",
        "srun",
        "srun -n",
        "export A='",
        "#SBATCH --array=9-1",
        "torchrun a.py",
        "#SBATCH --gpus=1e9",
        "srun torchrun --nproc_per_node=9 a.py",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gres=gpu:x:y:1",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(LINES | st.text(max_size=20), max_size=6), st.booleans())
def test_no_script_crashes_the_conversion(lines: list[str], local: bool) -> None:
    with contextlib.suppress(SpecInvalid):
        found = converted(HEAD + "\n".join(lines), local)
        if not found.problems:
            validate_spec(found.spec)


@pytest.mark.parametrize(
    ("told", "labels"),
    [
        ("nvlink", {"nvlink": "true"}),
        ("nvlink&gpu=a100", {"nvlink": "true", "gpu": "a100"}),
        ("[rack1|rack2]", None),
        ("nvlink*2", None),
    ],
)
def test_features_become_labels_of_nodes(told: str, labels: dict[str, str] | None) -> None:
    text = f'{HEAD}#SBATCH --constraint="{told}"\nsrun python train.py\n'
    found = converted(text)
    if labels is None:
        assert "job.sbatch, line 3: constraint: only names joined by &" in str(found.problems[0])
    else:
        assert not found.problems
        assert found.spec["placement"] == {"selector": labels}
        assert found.lines["placement.selector"] == 3
    assert "placement" not in converted(text, local=True).spec
