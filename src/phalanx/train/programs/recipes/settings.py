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

from phalanx.errors import Problem, SpecInvalid
from phalanx.kit.text import nearest

IMAGE_MODELS = ("resnet18", "resnet50", "resnet101", "vit_b_16")
TEXT_MODELS = ("gpt", "bert")
MODELS = (*IMAGE_MODELS, *TEXT_MODELS)
SCHEDULES = ("cosine", "constant")
LEAST_PIXELS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a recipe. Empty strings and zeros mean: not given."""

    model: str = "resnet18"  # one of MODELS
    num_classes: int = 0  # 0: the data's
    pretrained: str = ""  # path of a checkpoint with initial weights
    dataset: str = "cifar10"  # `cifar10`, `imagenet`, or a folder of images or a text
    data_path: str = ""  # folder of `cifar10` or `imagenet`
    image_size: int = 0  # pixels; 0: the data set's usual size
    block: int = 128  # bytes of text in a sample
    scale: float = 1.0  # width of the model relative to the usual one
    epochs: int = 10  # passes over the training data
    batch_size: int = 64  # samples per rank
    lr: float = 0.0  # learning rate; 0: the model's usual one
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


# In the file, by section; what is behind the arrow is the field.
_FILE: Mapping[str, Mapping[str, str]] = {
    "model": {
        "name": "model", "pretrained": "pretrained", "num_classes": "num_classes",
        "image_size": "image_size", "block": "block", "scale": "scale",
    },
    "data": {"dataset": "dataset", "path": "data_path", "prefetch_factor": "prefetch_factor"},
    "training": {
        "epochs": "epochs", "batch_size": "batch_size", "learning_rate": "lr",
        "momentum": "momentum", "weight_decay": "weight_decay", "lr_scheduler": "lr_scheduler",
        "warmup_epochs": "warmup_epochs", "label_smoothing": "label_smoothing", "clip": "clip",
        "seed": "seed", "max_steps": "max_steps",
    },
    "distributed": {
        "num_workers": "num_workers", "gpus_per_worker": "gpus_per_worker",
        "num_dataloader_workers": "num_dataloader_workers", "mixed_precision": "mixed_precision",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "gradient_checkpointing": "gradient_checkpointing",
    },
    "checkpointing": {
        "frequency": "checkpoint_freq", "keep_last_n": "keep_last_n", "dir": "checkpoint_dir",
    },
}  # fmt: skip
# Known from other trainers, and settled elsewhere here.
_ELSEWHERE = {
    "distributed.backend": "NCCL on GPUs, gloo on CPUs",
    "checkpointing.save_optimizer": "the optimizer is always saved",
}
_CHOICES = {
    "model": MODELS, "lr_scheduler": SCHEDULES, "mixed_precision": ("fp32", "fp16", "bf16"),
}  # fmt: skip
_LEAST: Mapping[str, float] = {
    "epochs": 1, "batch_size": 1, "gradient_accumulation_steps": 1, "block": 2,
    "num_dataloader_workers": 0, "num_workers": 0, "gpus_per_worker": 1, "prefetch_factor": 1,
    "keep_last_n": 1, "checkpoint_freq": 0,
    "lr": 0.0, "warmup_epochs": 0.0, "profile_steps": 0, "max_steps": 0, "image_size": 0,
    "num_classes": 0, "clip": 0.0, "momentum": 0.0,
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="phalanx recipe train",
        description="Train a known model on a folder of images or a text, on all ranks.",
    )
    made.add_argument("--config", metavar="FILE", help="YAML or JSON; flags stand over it")
    made.add_argument("--check", action="store_true", help="only check, and print as JSON")
    add = made.add_argument
    add("--model", help=f"{', '.join(MODELS)} (resnet18)")
    add("--pretrained", metavar="PATH", help="begin with what fits of this checkpoint's weights")
    add("--num-classes", type=int, help="default: what the data has")
    add("--dataset", help="cifar10, imagenet, or a folder of images or a text (cifar10)")
    add("--data-path", help="where cifar10 or imagenet lies")
    add("--image-size", type=int, help="pixels (32 for cifar10, 224 otherwise)")
    add("--block", type=int, help="bytes of a text that the model sees (128)")
    add("--scale", type=float, help="width of the model against the usual one (1.0)")
    add("--epochs", type=int)
    add("--max-steps", type=int, help="end after so many optimizer steps")
    add("--batch-size", type=int, help="per rank (64)")
    add("--lr", type=float)
    add("--momentum", type=float)
    add("--weight-decay", type=float)
    add("--lr-scheduler", help="cosine or constant")
    add("--warmup-epochs", type=float)
    add("--label-smoothing", type=float)
    add("--clip", type=float, help="upper bound of the gradients' norm")
    add("--mixed-precision", help="fp16 or bf16")
    add("--gradient-accumulation-steps", type=int)
    add(
        "--use-gradient-checkpointing",
        dest="gradient_checkpointing",
        action="store_const",
        const=True,
    )
    add("--checkpoint-freq", type=int, metavar="STEPS")
    add("--checkpoint-dir", help="outside the platform, which has its own")
    add("--keep-last-n", type=int)
    add(
        "--resume-from",
        metavar="PATH|latest",
        help="this run's own newest checkpoint (latest); without one, that of another run",
    )
    add("--num-workers", type=int, help="ranks of the job, where -n does not say")
    add("--gpus-per-worker", type=int, help="slots that each rank uses (1)")
    add("--num-dataloader-workers", type=int, help="data loading processes of each rank (2)")
    add("--prefetch-factor", type=int)
    add("--profile-steps", type=int, help="profile so many steps, from the tenth one on")
    add("--seed", type=int)
    return made


def read(arguments: Sequence[str]) -> tuple[Recipe, bool]:
    """Read the recipe, and whether to check it only. Raises SpecInvalid with every problem."""
    given = vars(parser().parse_args(arguments))
    file, only_check = given.pop("config"), bool(given.pop("check"))
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
                values[known[key]] = _number(known[key], value)
            elif where not in _ELSEWHERE:
                problems.append(Problem(where, _unknown(str(key), known)))
    if isinstance(values.get("pretrained", ""), bool | None) and values.pop("pretrained"):
        said = "must be the path of a checkpoint: nothing is downloaded"
        problems.append(Problem("model.pretrained", said))
    if problems:
        raise SpecInvalid(problems, str(path))
    return values


def _number(name: str, value: Any) -> Any:
    """Convert a value of the file; YAML reads `1e-3` as a string."""
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
    if not recipe.is_image and recipe.dataset in ("cifar10", "imagenet"):
        said = f"{recipe.model} reads a text: name a file or a folder of them"
        found.append(Problem("--dataset", said, recipe.dataset))
    if recipe.dataset in ("cifar10", "imagenet") and recipe.is_image and not recipe.data_path:
        found.append(Problem("--data-path", f"is needed: where {recipe.dataset} lies"))
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
