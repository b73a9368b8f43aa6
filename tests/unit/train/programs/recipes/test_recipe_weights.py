"""Initial weights of other trainers: names, files that are none, the cache that has none."""

import hashlib
import json
from types import SimpleNamespace

import pytest
import torch

from phalanx.errors import UserError
from phalanx.train.programs.recipes import images, starting, weights
from phalanx.train.programs.recipes.settings import Recipe

pytestmark = pytest.mark.unit


def torchvision_names(depths, bottleneck):
    """The names of a published ResNet, as torchvision's module tree gives them."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = ["conv1.weight", *(f"bn1.{one}" for one in norm), "fc.weight", "fc.bias"]
    for layer, depth in enumerate(depths, 1):
        for at in range(depth):
            here = f"layer{layer}.{at}"
            for number in range(1, 4 if bottleneck else 3):
                names.append(f"{here}.conv{number}.weight")
                names += [f"{here}.bn{number}.{one}" for one in norm]
            if at == 0 and (layer > 1 or bottleneck):
                names.append(f"{here}.downsample.0.weight")
                names += [f"{here}.downsample.1.{one}" for one in norm]
    return names


@pytest.mark.parametrize(
    ("model", "depths"), [("resnet18", (2, 2, 2, 2)), ("resnet50", (3, 4, 6, 3))]
)
def test_every_tensor_of_a_published_resnet_has_its_place(model, depths):
    with torch.device("meta"):
        own = images.ResNet(model, 1000, 224).state_dict()
    names = torchvision_names(depths, model != "resnet18")
    found = weights.from_torchvision({name: torch.zeros(()) for name in names}, model)
    assert set(found) == set(own)


def test_every_tensor_of_a_published_vit_has_its_place():
    names = ["class_token", "conv_proj.weight", "conv_proj.bias", "encoder.pos_embedding"]
    names += ["encoder.ln.weight", "encoder.ln.bias", "heads.head.weight", "heads.head.bias"]
    for at in range(12):
        here = f"encoder.layers.encoder_layer_{at}"
        for part in ("ln_1", "ln_2", "mlp.0", "mlp.3", "self_attention.out_proj"):
            names += [f"{here}.{part}.weight", f"{here}.{part}.bias"]
        names += [f"{here}.self_attention.in_proj_weight", f"{here}.self_attention.in_proj_bias"]
    with torch.device("meta"):
        own = images.ViT(1000, 224).state_dict()
    found = weights.from_torchvision({name: torch.zeros(()) for name in names}, "vit_b_16")
    assert set(found) == set(own)


def published(folder, damaged=False):
    model = images.ResNet("resnet18", 10, 32, 0.2)
    back = {"blocks.0.inside.0.0.weight": "layer1.0.conv1.weight", "head.weight": "fc.weight"}
    named = {back.get(name, name): one for name, one in model.state_dict().items()}
    file = folder / "weights.pth"
    torch.save(named, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    return model, file.rename(folder / f"resnet18-{'0' * 8 if damaged else digest}.pth")


def test_a_file_a_folder_and_the_cache_of_torch_are_read(tmp_path, monkeypatch):
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    model, file = published(cache)
    for given in ("true", str(file), str(cache)):
        fresh = images.ResNet("resnet18", 3, 32, 0.2)
        recipe = Recipe(model="resnet18", pretrained=given, scale=0.2)
        starting.load_weights(fresh, recipe)
        assert torch.equal(
            fresh.state_dict()["blocks.0.inside.0.0.weight"],
            model.state_dict()["blocks.0.inside.0.0.weight"],
        )
        assert len(fresh.head.bias) == 3


def test_where_no_weights_can_be_had_the_message_says_where_they_belong(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    recipe = Recipe(model="resnet50", pretrained="true")
    with pytest.raises(UserError, match=r"checkpoints holds no resnet50-\*.pth, and nothing is"):
        starting.load_weights(torch.nn.Linear(1, 1), recipe)


def test_damaged_files_and_pickles_of_code_are_refused(tmp_path):
    _, file = published(tmp_path, damaged=True)
    with pytest.raises(UserError, match="its digest is not that of its name"):
        weights.read_weights(file, "resnet18")
    bad = tmp_path / "bad.pt"
    torch.save({"a": weights.hub_file}, bad)
    with pytest.raises(UserError, match="cannot be read"):
        weights.read_weights(bad, "resnet18")
    other = tmp_path / "bad.safetensors"
    other.write_bytes(b"\xff" * 64)
    with pytest.raises(UserError, match="cannot be read"):
        weights.read_weights(other, "resnet18")


def test_safetensors_are_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    wanted = {"fc.bias": torch.arange(3.0), "fc.weight": torch.zeros(0, 2), "n": torch.tensor(7)}
    safetensors.save_file(wanted, tmp_path / "w.safetensors")
    found = weights.read_weights(tmp_path / "w.safetensors", "resnet18")
    assert torch.equal(found["head.bias"], wanted["fc.bias"])
    assert found["head.weight"].shape == (0, 2) and int(found["n"]) == 7


def test_a_backend_that_the_device_does_not_have():
    said = []
    starting.check_backend("nccl", "cpu", said.append)
    assert "gloo is used" in said[0]
    with pytest.raises(UserError, match="leave it out"):
        starting.check_backend("gloo", "cuda", said.append)
    for fitting in (("", "cpu"), ("gloo", "cpu"), ("nccl", "cuda"), ("auto", "cuda")):
        starting.check_backend(*fitting, said.append)
    assert len(said) == 1


class OneRank:
    """A run of one rank, and what another rank of the gang measured."""

    rank, world_size, is_main, batch_world = 0, 2, True, 2
    device = torch.device("cpu")

    def __init__(self, other=0.0):
        self.other = other

    def all_reduce_sum(self, *values):
        return [value + (self.other if at else 0.0) for at, value in enumerate(values)]


class Spy:
    def __init__(self, real):
        self.real, self.times, self.asked = real, 0, {}

    def __call__(self, step, **options):
        self.times, self.asked = self.times + 1, options
        return self.real(step, **options)


def test_the_batch_size_is_measured_once_and_the_smallest_of_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CHECKPOINT_DIR", str(tmp_path))
    model = torch.nn.Linear(4, 2)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    data = [(torch.randn(4), 1)] * 64
    loss = lambda net, x, y: torch.nn.functional.cross_entropy(net(x), y)  # noqa: E731
    task = SimpleNamespace(model=model, train=data, loss=loss)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    monkeypatch.setattr(starting.batch_size, "find", spied := Spy(starting.batch_size.find))
    recipe = Recipe(find_batch_size=True)
    assert starting.batch_size_of(recipe, OneRank(3.0), task, optimizer) <= 3
    assert spied.asked["largest"] == 32, "no more than a rank's part of the data"
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    noted = json.loads((tmp_path / starting.BATCH_FILE).read_text())["batch_size"]
    later = starting.batch_size_of(recipe, OneRank(), task, optimizer)
    assert (later, spied.times) == (noted, 1), "a restart takes the size of the first start"
    assert starting.batch_size_of(Recipe(batch_size=7), OneRank(), task, optimizer) == 7
