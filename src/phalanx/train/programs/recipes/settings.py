"""Settings of the ready-made trainer: flags over a file over defaults, checked before torch is loaded."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.core.training.learning_rate import LR_SCALES
from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest

IMAGE_MODELS = ("resnet18", "resnet50", "resnet101", "vit_b_16")
TEXT_MODELS = ("gpt", "bert")
MODELS = (*IMAGE_MODELS, *TEXT_MODELS)
SCHEDULES = ("cosine", "constant")
PRECISIONS = ("fp32", "fp16", "bf16")
BACKENDS = ("", "auto", "nccl", "gloo")
PUBLISHED = "true"
"""The value of `pretrained` for the published weights of the model."""
LEAST_PIXELS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a recipe. Empty strings and zeros mean: not given."""

    model: str = "resnet18"  # one of MODELS
    num_classes: int = 0  # 0: the data's
    pretrained: str = ""  # `true`, or path of a checkpoint or file with initial weights
    dataset: str = "cifar10"  # `cifar10`, `imagenet`, or a folder of images or a text
    data_path: str = ""  # folder of `cifar10` or `imagenet`
    image_size: int = 0  # pixels; 0: the data set's usual size
    block: int = 128  # bytes of text in a sample
    scale: float = 1.0  # width of the model relative to the usual one
    epochs: int = 10  # passes over the training data
    batch_size: int = 64  # samples per rank
    find_batch_size: bool = False  # measure the samples per rank at the first start
    lr: float = 0.0  # learning rate; 0: the model's usual one
    scale_lr: str = "none"  # one of LR_SCALES: with the number of ranks of the first start
    momentum: float = 0.9  # of SGD, which ResNets use
    weight_decay: float = -1.0  # negative: the model's usual one
    lr_scheduler: str = "cosine"  # one of SCHEDULES
    warmup_epochs: float = 0.0  # epochs of learning rate warmup
    label_smoothing: float = 0.0  # of image models: at least 0, below 1
    mixed_precision: str = "fp32"  # `fp32`, `fp16` or `bf16`
    gradient_accumulation_steps: int = 1  # micro-batches of an optimizer step
    gradient_checkpointing: bool = False  # recompute the activations of blocks
    clip: float = 0.0  # largest norm of the gradients; 0: not clipped
    checkpoint_freq: int = 0  # steps between checkpoints; 0: the run's default
    checkpoint_dir: str = ""  # folder of checkpoints outside the platform
    keep_last_n: int = 3  # checkpoints to keep
    resume_from: str = "latest"  # `latest`, or the path of another run's checkpoint
    num_workers: int = 0  # ranks of the job; 0: not given
    gpus_per_worker: int = 1  # slots that each rank uses
    backend: str = ""  # `nccl` or `gloo`; empty or `auto`: by the device
    num_dataloader_workers: int = 2  # data loading processes of each rank
    prefetch_factor: int = 2  # batches that a data loading process prefetches
    profile_steps: int = 0  # steps to profile; 0: none
    max_steps: int = 0  # optimizer steps after which training ends; 0: no limit
    seed: int = 0  # of weights and data order

    @property
    def is_image(self) -> bool:
        """Return whether the model takes images."""
        return self.model in IMAGE_MODELS

    @property
    def rate(self) -> float:
        """Return the learning rate, or the model's usual one."""
        return self.lr or (0.1 if self.model.startswith("resnet") else 1e-3)

    @property
    def decay(self) -> float:
        """Return the weight decay, or the model's usual one."""
        if self.weight_decay >= 0:
            return self.weight_decay
        return 5e-4 if self.model.startswith("resnet") else 0.05


# The sections of a file: a key is the name of a field, or stands before it.
_SECTIONS = {
    "model": "name=model pretrained num_classes image_size block scale",
    "data": "dataset path=data_path prefetch_factor",
    "training": "epochs batch_size find_batch_size learning_rate=lr scale_lr momentum weight_decay"
    " lr_scheduler warmup_epochs label_smoothing clip seed max_steps",
    "distributed": "backend num_workers gpus_per_worker num_dataloader_workers mixed_precision"
    " gradient_accumulation_steps gradient_checkpointing",
    "checkpointing": "frequency=checkpoint_freq keep_last_n dir=checkpoint_dir",
}
_FILE: Mapping[str, Mapping[str, str]] = {
    section: {entry.partition("=")[0]: entry.rpartition("=")[2] for entry in entries.split()}
    for section, entries in _SECTIONS.items()
}
# Known from other trainers: what they ask for is always done here, and nothing else can be had.
_ALWAYS = {
    "checkpointing.enabled": "checkpoints cannot be switched off: a restart would lose all work; save less"
    " often with `frequency`",
    "checkpointing.save_optimizer": "the optimizer is always saved: without it no resume is exact",
}
_CHOICES = {
    "model": MODELS,
    "lr_scheduler": SCHEDULES,
    "mixed_precision": PRECISIONS,
    "scale_lr": LR_SCALES,
    "backend": BACKENDS,
}
# Booleans that stand for a value in files of other trainers.
_SWITCHED: Mapping[str, tuple[str, str]] = {
    "pretrained": ("", PUBLISHED),
    "mixed_precision": ("fp32", "bf16"),
    "scale_lr": ("none", "linear"),
}
_FROM_0 = (
    "num_dataloader_workers num_workers checkpoint_freq lr warmup_epochs profile_steps max_steps"
    " image_size num_classes clip momentum"
)
_FROM_1 = (
    "epochs batch_size gradient_accumulation_steps gpus_per_worker prefetch_factor keep_last_n"
)
_LEAST = {**dict.fromkeys(_FROM_0.split(), 0), **dict.fromkeys(_FROM_1.split(), 1), "block": 2}
_HELP = {
    "model": f"{', '.join(MODELS)} (resnet18)",
    "num_classes": "default: the classes of the data",
    "pretrained": "start from the matching weights of this checkpoint or file; true: from the published"
    " weights in torch's cache on the nodes",
    "dataset": "cifar10, imagenet, or a folder of images or a text (cifar10)",
    "data_path": "the folder of cifar10 or imagenet",
    "image_size": "pixels (32 for cifar10, 224 otherwise)",
    "block": "context of a text model in bytes (128)",
    "scale": "factor on the width of the model (1.0)",
    "max_steps": "end after this number of optimizer steps",
    "epochs": "passes over the training data (10)",
    "batch_size": "samples per rank (64)",
    "find_batch_size": "measure the samples per rank at the first start, up to memory or throughput",
    "scale_lr": "multiply the learning rate by the ranks of the first start: none, linear, sqrt (none)",
    "backend": "nccl or gloo; default: nccl on GPUs, gloo otherwise",
    "lr": "learning rate (0.1 for ResNets, 0.001 otherwise)",
    "momentum": "momentum of SGD (0.9)",
    "weight_decay": "weight decay; negative: the model's usual one",
    "warmup_epochs": "epochs of learning rate warmup (0)",
    "label_smoothing": "label smoothing of image models (0)",
    "gradient_accumulation_steps": "micro-batches of an optimizer step (1)",
    "gradient_checkpointing": "recompute activations in the backward pass",
    "checkpoint_freq": "steps between checkpoints",
    "keep_last_n": "newest checkpoints to keep (3)",
    "prefetch_factor": "batches that a data loading process prefetches (2)",
    "seed": "seed of weights and data order (0)",
    "lr_scheduler": "cosine or constant (cosine)",
    "clip": "upper bound of the gradients' norm",
    "mixed_precision": "fp32, fp16 or bf16 (fp32)",
    "checkpoint_dir": "checkpoint folder of a run without Phalanx",
    "resume_from": "latest: the job's newest checkpoint; PATH: that of another run, if the job has none",
    "num_workers": "ranks of the job, unless -n is given",
    "gpus_per_worker": "slots that each rank uses (1)",
    "num_dataloader_workers": "data loading processes of each rank (2)",
    "profile_steps": "profile this number of steps, from the tenth on",
}
# What the trials of a search share, and why it cannot be searched.
_ONE_SHAPE = "all trials have the same ranks: give --gpus-per-trial or -n"
_ONE_FOLDER = "is the same in all trials: give the flag"
_SHARED = {
    "epochs": "is the length of every whole trial: give --epochs",
    "max_steps": "is the length of every whole trial: give --max-steps",
    "num_workers": _ONE_SHAPE,
    "gpus_per_worker": _ONE_SHAPE,
    "checkpoint_freq": _ONE_FOLDER,
    "checkpoint_dir": _ONE_FOLDER,
    "keep_last_n": _ONE_FOLDER,
    "resume_from": "would begin trials from different positions; search `pretrained`",
}
_LEAST_EPOCHS = 3
"""Trials of fewer epochs are not compared on their way."""
_METAVARS = {"pretrained": "PATH", "checkpoint_freq": "STEPS", "resume_from": "PATH|latest"}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="phalanx recipe train",
        description="Train a known model on a folder of images or a text, on all ranks.",
    )
    made.add_argument("--config", metavar="FILE", help="YAML or JSON; flags override it")
    said = (
        "check and print JSON, do not train; study: with the values of a search from standard input"
    )
    made.add_argument("--check", nargs="?", const="job", choices=("job", "study"), help=said)
    for name, usual in asdict(Recipe()).items():
        flag, about = "--" + name.replace("_", "-"), _HELP.get(name)
        if isinstance(usual, bool):
            flag = flag if name.startswith("find_") else flag.replace("--", "--use-", 1)
            made.add_argument(flag, dest=name, action="store_const", const=True, help=about)
        else:
            made.add_argument(flag, type=type(usual), help=about, metavar=_METAVARS.get(name))
    return made


def read(arguments: Sequence[str]) -> tuple[Recipe, str | None]:
    """Read the recipe, and what to check only: `job`, `study` or None to train.

    Raises SpecInvalid with every problem.
    """
    given = vars(parser().parse_args(arguments))
    file, only_check = given.pop("config"), given.pop("check")
    values: dict[str, Any] = {} if file is None else _of_file(Path(file))
    values |= {key: value for key, value in given.items() if value is not None}
    recipe = replace(Recipe(), **values)
    problems = _problems(recipe)
    if problems:
        raise SpecInvalid(problems, "phalanx recipe train --help")
    return recipe, only_check


def _of_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        found = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError) as error:
        raise SpecInvalid([Problem(str(path), f"cannot be read: {error}")]) from None
    if not isinstance(found, dict):
        raise SpecInvalid([Problem(str(path), f"must have the sections {', '.join(_FILE)}")])
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for section, entries in found.items():
        known = _FILE.get(section)
        if known is None or not isinstance(entries, dict):
            problems.append(Problem(str(section), _unknown(str(section), _FILE)))
            continue
        for key, value in entries.items():
            where = f"{section}.{key}"
            if key in known:
                values[known[key]] = _value(known[key], value)
            elif where not in _ALWAYS:
                problems.append(Problem(where, _unknown(str(key), known)))
            elif value is not True:
                problems.append(Problem(where, _ALWAYS[where], str(value)))
    if problems:
        raise SpecInvalid(problems, str(path))
    return values


def _value(name: str, value: Any) -> Any:
    """Convert a value of the file; YAML reads `1e-3` as a string, and `true` may stand for a name."""
    if name in _SWITCHED and isinstance(value, bool | None):
        return _SWITCHED[name][bool(value)]
    if isinstance(value, str) and isinstance(getattr(Recipe(), name), float):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _yaml(text: str) -> Any:
    yaml = importlib.import_module("yaml")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _unknown(key: str, known: Mapping[str, Any]) -> str:
    near = nearest(key, list(known))
    return f"is unknown; {f'did you mean {near}?' if near else 'known: ' + ', '.join(known)}"


def _problems(recipe: Recipe) -> list[Problem]:
    found = []
    usual = asdict(Recipe())
    for name, value in asdict(recipe).items():
        flag = "--" + name.replace("_", "-")
        wanted = type(usual[name])
        kinds = (int, float) if wanted is float else (wanted,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and wanted is not bool):
            found.append(Problem(flag, f"must be a {wanted.__name__}", repr(value)))
        elif name in _CHOICES and value not in _CHOICES[name]:
            found.append(Problem(flag, f"must be {', '.join(_CHOICES[name])}", str(value)))
        elif name in _LEAST and not value >= _LEAST[name]:
            found.append(Problem(flag, f"must be at least {_LEAST[name]:g}", str(value)))
    if not found and not 0 < recipe.scale < math.inf:
        found.append(Problem("--scale", "must be above 0", str(recipe.scale)))
    if not found and not 0 <= recipe.label_smoothing < 1:
        value = str(recipe.label_smoothing)
        found.append(Problem("--label-smoothing", "must be at least 0 and below 1", value))
    if not found and 0 < recipe.image_size < LEAST_PIXELS:
        said = f"must be at least {LEAST_PIXELS}"
        found.append(Problem("--image-size", said, str(recipe.image_size)))
    if recipe.pretrained == PUBLISHED and recipe.model in TEXT_MODELS:
        said = f"no published weights fit {recipe.model}: write the path of a checkpoint or file"
        found.append(Problem("--pretrained", said))
    if not recipe.is_image and recipe.dataset in ("cifar10", "imagenet"):
        said = f"{recipe.model} reads a text: name a file or a folder of texts"
        found.append(Problem("--dataset", said, recipe.dataset))
    if recipe.dataset in ("cifar10", "imagenet") and recipe.is_image and not recipe.data_path:
        found.append(Problem("--data-path", f"is required: the folder of {recipe.dataset}"))
    return found


def as_job(recipe: Recipe) -> dict[str, Any]:
    """Return the part of a recipe that belongs in a job's spec."""
    checkpoint: dict[str, Any] = {"keep": {"last": recipe.keep_last_n}}
    if recipe.checkpoint_freq:
        checkpoint["every"] = f"{recipe.checkpoint_freq} steps"
    resources: dict[str, Any] = {}
    if recipe.num_workers:
        resources["slots_per_node"] = recipe.num_workers * recipe.gpus_per_worker
    if recipe.gpus_per_worker > 1:
        resources["slots_per_rank"] = recipe.gpus_per_worker
    return {
        "name": recipe.model.replace("_", "-"),
        "checkpoint": checkpoint,
        "resources": resources,
    }


def with_params(recipe: Recipe, params: Mapping[str, Any], under: str = "params") -> Recipe:
    """Return the recipe with a trial's params, named like flags or keys of the file, over its settings.

    Raises SpecInvalid with every problem; paths begin with `under`.
    """
    names = {given: _setting(given) for given in params}
    problems = [
        Problem(f"{under}.{given}", _unknown(given, asdict(recipe)))
        for given, name in names.items()
        if name is None
    ]
    owners = {name: given for given, name in names.items()}
    for given, name in names.items():
        if name is not None and owners[name] != given:
            said = f"names the same setting as {owners[name]}; remove one"
            problems.append(Problem(f"{under}.{given}", said))
    if problems:
        raise SpecInvalid(problems, "params are settings of the trainer: phalanx recipe flags")
    changed = {name: _value(name, params[given]) for given, name in names.items() if name}
    recipe = replace(recipe, **changed)
    flags = {"--" + name.replace("_", "-"): given for given, name in names.items() if name}
    problems = [
        replace(one, path=f"{under}.{flags[one.path]}") if one.path in flags else one
        for one in _problems(recipe)
    ]
    if problems:
        raise SpecInvalid(problems)
    return recipe


def _setting(given: str) -> str | None:
    """The setting that a parameter of a search names: `lr`, `learning_rate` or `batch-size`."""
    name = given.replace("-", "_")
    keys = {key: field for section in _FILE.values() for key, field in section.items()}
    return name if name in asdict(Recipe()) else keys.get(name)


def as_study(recipe: Recipe, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the part of a search over `values` that belongs in a study's spec.

    `values` are the bounds or choices of each parameter. Raises SpecInvalid with every problem.
    """
    found: dict[str, Problem] = {}
    if recipe.resume_from != "latest":
        said = "does not go with a search; trials can begin from --pretrained"
        found["--resume-from"] = Problem("--resume-from", said)
    for given in values:
        if (name := _setting(given)) in _SHARED:
            found[given] = Problem(f"space.{given}", _SHARED[str(name)])
    first = {given: some[0] for given, some in values.items()}
    images = set()
    for given, some in values.items():
        for value in some:
            try:
                images.add(with_params(recipe, {**first, given: value}, "space").is_image)
            except SpecInvalid as error:
                found = {one.path: one for one in error.problems} | found
    if len(images) > 1:
        said = "models of images and of texts have different objectives; search one kind"
        found["model"] = Problem("space.model", said)
    if found:
        raise SpecInvalid(list(found.values()), "phalanx recipe flags")
    metric, goal = ("val_acc", "maximize") if images == {True} else ("val_loss", "minimize")
    study: dict[str, Any] = {"objective": {"metric": metric, "goal": goal}}
    study["search"] = {"method": "auto", "seed": recipe.seed}
    if recipe.epochs >= _LEAST_EPOCHS and not recipe.max_steps:
        study["rungs"] = {"rule": "asha", "unit": "epoch", "min": 1, "max": recipe.epochs}
    return study
