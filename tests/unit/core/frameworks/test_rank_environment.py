"""The whole environment of a rank: the variables of torch and of Phalanx, and nothing foreign."""

import json
from dataclasses import replace

import pytest

from phalanx.core.contract.checkpointing import CheckpointPolicy, SaveInterval
from phalanx.core.contract.gang import RankFiles, RolePlace, WorldShape
from phalanx.core.contract.trial import TrialContract
from phalanx.core.frameworks.rank_environment import (
    NodeSetting,
    rank_environment,
)
from phalanx.core.gang.placement import omp_num_threads
from phalanx.core.jobs.desired import Action
from phalanx.core.training.checkpoints import Keep
from phalanx.schemas.frameworks import framework
from phalanx.schemas.wire.supervision import Orders, RoleMaster
from phalanx.testing.executors import gang_contract

pytestmark = pytest.mark.unit

FILES = RankFiles("/n/r.report", "/n/control", "/n/r.error.json")


class Gang:
    """Two nodes of three ranks each; `changes` are of the role, the orders or the node."""

    def __init__(
        self,
        *,
        generation=3,
        resume_path=None,
        masters=(),
        env=None,
        interface=None,
        place=None,
        trial=None,
        until=None,
        **role,
    ):
        made = gang_contract(
            12, attempt=2, num_nodes=2, ranks_per_node=3, checkpoint_dir="/c/default/j-12", **role
        )
        self.contract = replace(made, trial=trial)
        self.orders = Orders(
            version="1",
            action=Action.RUN,
            generation=generation,
            master_address="10.0.0.1",
            master_port=23456,
            restarts=4,
            resume_path=resume_path,
            until=until,
            masters=list(masters),
        )
        self.node = NodeSetting(env=env or {}, cpus=8, interface=interface, place=place)


def gang(**changes):
    return Gang(**changes)


def environment(gang, node_rank, local_rank, files=FILES):
    rank = gang.contract.rank(gang.orders, node_rank, local_rank, files)
    adapter = framework(gang.contract.role.framework)
    return rank_environment(adapter, gang.contract, gang.orders, rank, gang.node)


def test_numbers_of_a_rank_on_the_second_node():
    env = environment(gang(), 1, 2, FILES)
    assert {k: env[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "5",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "3",
    }
    assert (env["GROUP_RANK"], env["NODE_RANK"], env["PET_NODE_RANK"]) == ("1", "1", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "23456")
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("2", "3")


def test_ranks_of_all_nodes_are_numbered_once():
    ranks = [
        int(environment(gang(), node, local, FILES)["RANK"])
        for node in range(2)
        for local in range(3)
    ]
    assert ranks == list(range(6))


def test_no_agent_store_and_an_error_file_per_rank():
    env = environment(gang(), 0, 0, FILES)
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert env["TORCHELASTIC_ERROR_FILE"] == FILES.error_file
    assert env["TORCHELASTIC_RUN_ID"] == "j-12-a002-g003"
    assert env["TORCHELASTIC_RESTART_COUNT"] == "4"


def test_the_run_id_differs_between_generations():
    ids = {environment(gang(generation=g), 0, 0, FILES)["TORCHELASTIC_RUN_ID"] for g in (0, 1)}
    assert len(ids) == 2


def test_the_spec_cannot_break_the_rendezvous_but_may_choose_threads():
    user = {"RANK": "99", "MASTER_PORT": "1", "OMP_NUM_THREADS": "5", "LR": "0.1"}
    env = environment(gang(env=user), 0, 1, FILES)
    assert (env["RANK"], env["MASTER_PORT"]) == ("1", "23456")
    assert (env["OMP_NUM_THREADS"], env["LR"]) == ("5", "0.1")


def test_spans_of_a_script_hang_under_its_generation():
    old = {"TRACEPARENT": f"00-{'1' * 32}-{'2' * 16}-00", "TRACESTATE": "other=1"}
    for framework_name in ("torch", "none"):
        made = gang(env=old, framework=framework_name)
        env = environment(made, 0, 0, FILES)
        span = made.contract.trace.generation(2, 3)
        assert env["TRACEPARENT"] == span.traceparent()
        assert env["TRACESTATE"] == "phalanx=j12.a2.g3"


@pytest.mark.parametrize(("ranks", "cpus", "threads"), [(3, 2, 1), (2, 8, 4), (1, 8, None)])
def test_ranks_share_the_cpus(ranks, cpus, threads):
    assert omp_num_threads(ranks, cpus) == threads


def test_phalanx_variables():
    policy = CheckpointPolicy(every=SaveInterval(10.0), keep=Keep(last=3))
    env = environment(gang(checkpoint=policy, resume_path="/c/x"), 0, 0, FILES)
    assert env["PHALANX_JOB"] == "j-12"
    assert (env["PHALANX_ATTEMPT"], env["PHALANX_GENERATION"]) == ("2", "3")
    assert env["PHALANX_CHECKPOINT_DIR"] == "/c/default/j-12"
    assert env["PHALANX_CHECKPOINT_EVERY"] == "10s"
    assert json.loads(env["PHALANX_CHECKPOINT_KEEP"]) == {"last": 3}
    assert env["PHALANX_RESUME_PATH"] == "/c/x"


def test_absent_means_absent():
    env = environment(gang(), 0, 0, FILES)
    absent = {
        "PHALANX_RESUME_PATH",
        "PHALANX_CHECKPOINT_STORE",
        "PHALANX_TRAINING",
        "PHALANX_STRATEGY",
    }
    assert not absent & env.keys()


def test_framework_none_gets_numbers_but_no_torch_contract():
    env = environment(gang(framework="none"), 1, 0, FILES)
    assert env["RANK"] == "3"
    assert not [k for k in env if k.startswith(("MASTER_", "PET_", "TORCHELASTIC_"))]


def test_jax_finds_its_gang_where_it_looks():
    env = environment(gang(framework="jax", slots_per_rank=2), 1, 2, FILES)
    assert env["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:23456"
    assert (env["OMPI_COMM_WORLD_RANK"], env["OMPI_COMM_WORLD_SIZE"]) == ("5", "6")
    assert (env["OMPI_COMM_WORLD_LOCAL_RANK"], env["JAX_LOCAL_DEVICE_IDS"]) == ("2", "4,5")
    assert "tcp://10.0.0.1:" in env["OMPI_MCA_orte_hnp_uri"]
    alone = gang(framework="jax", slots_per_rank=2, isolate_devices=True)
    assert environment(alone, 1, 2, FILES)["JAX_LOCAL_DEVICE_IDS"] == "0,1"
    own = gang(framework="jax", env={"JAX_LOCAL_DEVICE_IDS": "0"})
    assert environment(own, 1, 2, FILES)["JAX_LOCAL_DEVICE_IDS"] == "0"


def test_horovod_finds_what_its_own_launcher_would_say():
    env = environment(gang(framework="horovod", interface="eth1"), 1, 2, FILES)
    shown = {key: value for key, value in env.items() if key.startswith("HOROVOD_")}
    assert shown == {
        "HOROVOD_RANK": "5",
        "HOROVOD_SIZE": "6",
        "HOROVOD_LOCAL_RANK": "2",
        "HOROVOD_LOCAL_SIZE": "3",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_HOSTNAME": "node1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "23456",
        "HOROVOD_GLOO_IFACE": "eth1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "600",
    }


def test_other_frameworks_leave_torch_alone():
    for name in ("torch", "mpi", "tensorflow", "ray"):
        env = environment(gang(framework=name), 0, 0, FILES)
        assert not [key for key in env if key.startswith(("JAX_", "OMPI_", "HOROVOD_", "TF_"))]


def test_ranks_of_a_role_are_a_world_of_their_own_and_know_the_others():
    masters = {"learner": "10.0.0.1:4000", "actor": "10.0.0.2:4001"}
    place = RolePlace(
        name="actor", node_rank=1, first_rank=4, gang_size=10, lead_dir="/c/default/j-12"
    )
    told = [
        RoleMaster(name="learner", address="10.0.0.1", port=4000),
        RoleMaster(name="actor", address="10.0.0.2", port=4001),
    ]
    env = environment(gang(place=place, masters=told, framework="none"), 1, 0, FILES)
    assert (env["RANK"], env["WORLD_SIZE"], env["NODE_RANK"]) == ("3", "6", "1")
    assert (env["PHALANX_ROLE"], env["PHALANX_GANG_RANK"]) == ("actor", "7")
    assert (env["PHALANX_GANG_SIZE"], json.loads(env["PHALANX_ROLES"])) == ("10", masters)
    assert env["PHALANX_LEAD_CHECKPOINT_DIR"] == "/c/default/j-12"
    torch = environment(gang(place=place), 1, 0, FILES)
    assert (torch["ROLE_NAME"], torch["ROLE_RANK"], torch["ROLE_WORLD_SIZE"]) == ("actor", "3", "6")
    assert not any(name.startswith("PHALANX_ROLE") for name in environment(gang(), 0, 0, FILES))


def test_ranks_of_unequal_nodes_are_numbered_through():
    def at(node, local, framework="torch", **place):
        own = gang(framework=framework, place=RolePlace(**place) if place else None)
        own.contract = replace(own.contract, world=WorldShape.of([2, 1, 3]))
        return environment(own, node, local, FILES)

    env = at(2, 1)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "PET_NNODES")
    assert [env[name] for name in names] == ["4", "6", "1", "3", "2", "3"]
    assert env["PET_NPROC_PER_NODE"] == "3"
    worker = {"name": "worker", "node_rank": 2, "first_rank": 0, "gang_size": 7, "lead_dir": "/c"}
    env = at(2, 1, **worker, role_first_rank=2, role_size=4)
    assert (env["RANK"], env["PHALANX_GANG_RANK"]) == ("4", "4")
    assert (env["ROLE_NAME"], env["ROLE_RANK"], env["ROLE_WORLD_SIZE"]) == ("worker", "2", "4")
    # Local rank 1 is on nodes 0 and 2 alone, local rank 2 on the last.
    env = at(2, 1, "horovod")
    assert (env["HOROVOD_CROSS_RANK"], env["HOROVOD_CROSS_SIZE"]) == ("1", "2")
    env = at(2, 2, "horovod")
    assert (env["HOROVOD_CROSS_RANK"], env["HOROVOD_CROSS_SIZE"]) == ("0", "1")


def test_a_trial_finds_its_params_and_its_raised_target():
    trial = TrialContract(study=3, trial=5, params={"lr": 0.1}, until=3)
    for framework_ in ("torch", "none"):
        env = environment(gang(trial=trial, until=9, framework=framework_), 0, 0)
        assert (env["PHALANX_STUDY"], env["PHALANX_TRIAL"]) == ("3", "5")
        assert json.loads(env["PHALANX_PARAMS"]) == json.loads(env["DET_HPARAMS"]) == {"lr": 0.1}
        assert (env["PHALANX_PARAM_LR"], env["PHALANX_TRIAL_UNTIL"]) == ("0.1", "9")


def test_a_lower_target_changes_nothing():
    trial = TrialContract(study=3, trial=5, until=9)
    assert environment(gang(trial=trial, until=3), 0, 0)["PHALANX_TRIAL_UNTIL"] == "9"
    assert "PHALANX_TRIAL_UNTIL" not in environment(gang(trial=None, until=3), 0, 0)


def test_params_that_a_job_sets_itself_stay():
    env = environment(gang(env={"PHALANX_PARAMS": '{"lr": 1}'}), 0, 0)
    assert env["PHALANX_PARAMS"] == '{"lr": 1}'
