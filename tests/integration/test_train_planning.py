"""Models cut into stages, scripts that are only looked at, and what `auto` decides."""

import json
import textwrap

import pytest
import torch
from torch import nn

from phalanx.core.training import estimates
from phalanx.errors import NotSupported, SpecInvalid, UserError
from phalanx.train.parallel import model_costs, stages, strategy_choice
from phalanx.train.programs.planning.__main__ import main, survey_script
from phalanx.train.programs.planning.planning_run import PlanningRun
from phalanx.train.run import Run
from phalanx.train.settings import RunOptions

pytestmark = pytest.mark.integration

SCRIPT = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import phalanx.train as pt

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
width = parser.parse_args().width
run = pt.init(precision="bf16", tp_plan={"0": "colwise", "2": "rowwise"})
model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
nn.init.normal_(model[0].weight)
opt = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(32, width), torch.randn(32, width)), batch_size=8)
model, opt, loader = run.prepare(model, opt, loader)
for epoch in run.epochs(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        {line}
        opt.step()
        raise AssertionError("nothing may come after the first step")
"""
WORLD = estimates.parse_devices("8xH100")


@pytest.fixture
def script(tmp_path):
    def make(line="run.backward(loss)", text=SCRIPT):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text).replace("{line}", line))
        return path

    return make


def test_a_script_is_looked_at_without_memory(script):
    width = 1 << 14  # eight gigabytes of parameters
    look = survey_script(script(), ["--width", str(width)], WORLD)
    found = look.outline
    assert look.problem == ""
    assert look.num_parameters == 8 * width * width + 5 * width
    assert found.parameter_bytes == found.trainable_bytes == 4 * look.num_parameters
    assert found.optimizer_bytes == 2 * found.parameter_bytes
    # Forward and both halves of the backward pass; the input's gradient is not needed.
    assert found.flops == 2 * 8 * 4 * width * width * (3 + 2)
    assert found.activation_bytes == int(0.75 * 4 * 8 * (1 + 4 + 4 + 1 + 1) * width)
    assert (found.batch, found.precision, len(found.layer_bytes)) == (8, "bf16", 3)
    assert found.tp_part == 1


def test_what_kept_it_from_seeing_more_is_said(script):
    look = survey_script(script("print(loss.item())"), [], WORLD)
    assert look.problem.startswith("line 20: RuntimeError: ")
    assert look.outline.flops is not None  # of the forward pass, times three
    with pytest.raises(UserError, match=r"line 2: ZeroDivisionError"):
        survey_script(script(text="x = 1\n1 / 0\n"), [], WORLD)
    with pytest.raises(UserError, match=r"did not call run\.prepare"):
        survey_script(script(text="x = 1\n"), [], WORLD)


def test_what_a_script_prints_is_not_the_plan(script, capsys):
    path = str(script(text='print("hello")\n' + SCRIPT))
    assert main([path, "--world", "8xH100", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["recommended"] and "hello" in said.err


def test_every_name_of_a_run_is_there_while_a_script_is_looked_at():
    run = PlanningRun(RunOptions(), world_size=1)
    assert {name for name in vars(Run) if name[0] != "_"} <= set(dir(run))


def test_the_program_prints_a_table_and_json(script, capsys):
    path = str(script())
    assert main([path, "--world", "8xH100"]) == 0
    text = capsys.readouterr().out
    assert "Recommended: ddp" in text and "> ddp" in text
    assert (
        main([path, "--world", "8xH100", "--memory", "1MB", "--json", "--", "--width", "256"]) == 0
    )
    body = json.loads(capsys.readouterr().out)
    assert body["model"]["num_parameters"] == 8 * 256 * 256 + 5 * 256
    assert "nothing fits" in body["why"]
    assert main([path, "--world", "8xHal9000"]) == 1
    assert "is not known" in capsys.readouterr().err
    assert main(["nothing.py", "--world", "8xH100"]) == 1


class Net(nn.Module):
    pipeline_layers = ("stem", "blocks", "head")

    def __init__(self, num=4):
        super().__init__()
        self.stem, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(num)])


def names(parts):
    return [[layer.name for layer in part] for part in parts]


def test_a_model_is_cut_into_equally_heavy_stages_or_where_it_is_told():
    layers = stages.layers_of(Net())
    assert [layer.name for layer in layers] == [
        "stem",
        *(f"blocks.{at}" for at in range(4)),
        "head",
    ]
    assert names(stages.cut(layers, 2, ()))[1][0] == "blocks.2"
    assert names(stages.cut(layers, 3, ("blocks.1", "head"))) == [
        ["stem", "blocks.0"],
        ["blocks.1", "blocks.2", "blocks.3"],
        ["head"],
    ]
    shapes = stages.StageShapes(stages.cut(layers, 3, ()))
    passed = shapes.between([torch.zeros(5, 3)])
    assert [tuple(one[0].shape) for one in passed] == [(5, 3), (5, 8), (5, 8), (5, 2)]
    assert all(one[0].is_meta for one in passed) and passed[1][0].requires_grad


def shared():
    model = Net()
    model.blocks[3] = model.blocks[0]
    return model


def loose():
    model = Net()
    model.scale = nn.Parameter(torch.ones(1))
    return model


@pytest.mark.parametrize(
    ("model", "num", "begins", "said"),
    [
        (nn.Linear(2, 2), 2, (), "pp cannot cut a Linear"),
        (loose(), 2, (), "scale is in none of the layers"),
        (shared(), 3, (), "is shared with stage 0"),
        (Net(1), 5, (), "3 layers are too few for 5 stages"),
        (Net(), 2, ("block.2",), "did you mean blocks.2?"),
        (Net(), 3, ("head",), "must name 2 layers"),
        (Net(), 2, ("stem",), "stage 0 would have no layer"),
    ],
)
def test_cuts_that_make_no_sense_are_named(model, num, begins, said):
    with pytest.raises(SpecInvalid, match=said.replace("?", r"\?")):
        stages.cut(stages.layers_of(model), num, begins)


def test_layers_that_look_at_values_are_named():
    class Looks(nn.Module):
        def forward(self, x):
            return x[: int(x.sum())]

    shapes = stages.StageShapes([stages.layers_of(nn.Sequential(Looks()))])
    with pytest.raises(NotSupported, match="stage 0 has no output shape"):
        shapes.between([torch.ones(3)])


def test_released_layers_keep_names_and_shapes():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before = {name: one.shape for name, one in model.state_dict().items()}
    stages.free_memory(model[1])
    after = model.state_dict()
    assert {name: one.shape for name, one in after.items()} == before
    assert [name for name, one in after.items() if not one.is_meta] == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("memory", "best"), [(64 << 20, "ddp"), (32 << 20, "fsdp"), (1 << 20, "fsdp")]
)
def test_auto_takes_the_first_that_fits(memory, best):
    device = estimates.with_memory(estimates.DEVICES["H100"], memory)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
    choice = strategy_choice.pick(model, estimates.DeviceSet(1, 8, device))
    assert choice.best.name == best
    assert choice.best.fits == (memory > 1 << 20)


def test_attention_is_counted_as_flash_kernels_keep_it():
    heads, length, width = 4, 512, 16
    shape, bytes_of_scores = (1, heads, length, width), heads * length * length * 4
    query = torch.empty(shape, device="meta", requires_grad=True)
    few = torch.empty((1, 2, length, width), device="meta", requires_grad=True)  # two heads share

    def kept():
        found = {}

        def keep(tensor):
            found[tensor.untyped_storage()._cdata] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            put_out = nn.functional.scaled_dot_product_attention(
                query, few, few, is_causal=True, enable_gqa=True
            )
        assert put_out.shape == shape
        put_out.sum().backward()
        return sum(one.untyped_storage().nbytes() for one in found.values())

    with model_costs.flash_attention_costs():
        assert kept() < bytes_of_scores / 4
    # The control: torch's plain formula keeps the scores.
    assert kept() >= bytes_of_scores


def test_a_script_of_a_trial_can_be_planned(monkeypatch):
    monkeypatch.setenv("PHALANX_PARAMS", '{"width": 8}')
    run = PlanningRun(RunOptions(), world_size=1)
    assert (run.params.width, run.target, run.report(epoch=0, loss=1.0)) == (8, None, None)
