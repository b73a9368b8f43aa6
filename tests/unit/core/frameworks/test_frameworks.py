"""Every framework's adapter: its processes, its command, and that a new one needs no other change."""

from dataclasses import dataclass

import pytest

from phalanx.core.contract.job import RankCommand, RoleContract
from phalanx.core.frameworks.adapter import REGISTRY, FrameworkAdapter, register
from phalanx.errors import NotFound, SpecInvalid
from phalanx.schemas import frameworks
from phalanx.schemas.frameworks import framework
from phalanx.schemas.spec.document import validate_spec
from phalanx.schemas.spec.support import check_supported

pytestmark = pytest.mark.unit
SHELL = "python train.py --lr 1"


def role(name, command=SHELL, **fields):
    return RoleContract(name="worker", command=RankCommand.of(command), framework=name, **fields)


def test_all_of_them_are_registered():
    assert list(REGISTRY) == [
        "torch",
        "jax",
        "tensorflow",
        "horovod",
        "mpi",
        "ray",
        "optuna",
        "none",
    ]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("torch", 4),
        ("jax", 4),
        ("tensorflow", 4),
        ("horovod", 4),
        ("none", 4),
        ("mpi", 1),
        ("ray", 1),
    ],
)
def test_ranks_per_node(name, ranks):
    assert framework(name).ranks_per_node(8, 2) == ranks
    assert framework(name).ranks_per_node(0, 1) == 1  # a role without slots


@pytest.mark.parametrize("name", ["torch", "jax", "horovod", "none"])
@pytest.mark.parametrize("command", [SHELL, ["python", "train.py"]])
def test_most_frameworks_run_the_command_as_it_is(name, command):
    assert framework(name).command(role(name, command), cpus=2).argv == command


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("tensorflow", ["tensorflow", "--slots-per-rank", "2"]),
        ("mpi", ["mpi", "--slots", "4"]),
        ("ray", ["ray", "--cpus", "16"]),
        ("optuna", ["optuna"]),
    ],
)
def test_some_run_it_below_a_program_that_prepares_the_rank(name, program):
    begin = ["python", "-m", f"phalanx.train.frameworks.{program[0]}", *program[1:]]
    wanted = role(name, slots_per_node=8, slots_per_rank=2)
    assert framework(name).command(wanted, cpus=16).argv == [*begin, "--shell", "--", SHELL]
    words = role(name, ["a", "b c"], slots_per_node=8, slots_per_rank=2)
    assert framework(name).command(words, cpus=16).argv == [*begin, "--", "a", "b c"]


def test_what_is_special_of_each():
    def having(flag):
        return {name for name, one in REGISTRY.items() if getattr(one, flag)}

    assert having("forkable") == {"torch", "horovod"}
    assert having("needs_store") == {"horovod"}
    assert {name for name, one in REGISTRY.items() if not one.accepts} == {"none", "optuna"}
    assert having("in_roles") == {"torch", "jax", "horovod", "none"}
    assert set(REGISTRY) - having("rendezvous") == {"none", "optuna"}
    assert set(REGISTRY) - having("lays_out_ranks") == {"ray", "optuna"}
    assert set(REGISTRY) - having("stores_checkpoints") == {"jax"}


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="torch is registered already"):
        register(FrameworkAdapter(name="torch"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyFramework(FrameworkAdapter):
    """See docs/dev/frameworks.md."""

    def environment(self, rank, role):
        return {"TOY_PLACE": f"{rank.rank}/{rank.world_size}"}


@pytest.fixture
def toy(monkeypatch):
    """As if a package with the entry point `toy = "toy:ADAPTER"` were installed."""

    class Entry:
        def load(self):
            return ToyFramework(name="toy")

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry()])
    frameworks._load.cache_clear()
    yield
    REGISTRY.pop("toy", None)
    frameworks._load.cache_clear()


def test_a_package_adds_a_framework(toy, gang_environment):
    spec = validate_spec({"schema": 1, "run": SHELL, "framework": "toy", "resources": {"nodes": 2}})
    assert check_supported(spec) == []
    (only,) = spec.to_contract().roles
    assert only.framework == "toy"
    env = gang_environment("toy", num_nodes=2)
    assert (env["TOY_PLACE"], env["MASTER_ADDR"]) == ("1/2", "10.0.0.1")


def test_without_the_package_its_name_is_refused():
    with pytest.raises(SpecInvalid, match=r"must be 'torch', .* or 'none'"):
        validate_spec({"schema": 1, "run": SHELL, "framework": "toy"})
    with pytest.raises(NotFound, match="no framework toy is installed"):
        framework("toy")


@pytest.fixture
def gang_environment():
    from phalanx.core.contract.gang import RankFiles
    from phalanx.core.frameworks.rank_environment import NodeSetting, rank_environment
    from phalanx.core.jobs.desired import Action
    from phalanx.schemas.wire.supervision import Orders
    from phalanx.testing.executors import gang_contract

    def made(name, **shape):
        gang = gang_contract(1, framework=name, **shape)
        orders = Orders(
            version="1", action=Action.RUN, master_address="10.0.0.1", master_port=23456
        )
        rank = gang.rank(orders, 1, 0, RankFiles("r", "c", "e"))
        node = NodeSetting(env={}, cpus=1)
        return rank_environment(framework(name), gang, orders, rank, node)

    return made
