"""What a recipe settles before its loop: the backend, the initial weights and the batch size."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from phalanx.errors import CheckpointCorrupt, UserError
from phalanx.train import batch_size
from phalanx.train.gang import context
from phalanx.train.programs.recipes import weights
from phalanx.train.programs.recipes.settings import PUBLISHED, Recipe
from phalanx.train.run import Run
from phalanx.train.state import export, warm_start

BATCH_FILE = "batch_size.json"
_LARGEST_BATCH = 4096
_HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def check_backend(wanted: str, device: str, say: Callable[[str], None]) -> None:
    """Compare the backend that a file names with that of the device. Raises UserError.

    A file that was written for GPUs also runs on a machine without one; the reverse is a mistake.
    """
    if wanted == "nccl" and device != "cuda":
        say("backend nccl: this machine has no GPU, gloo is used")
    if wanted == "gloo" and device == "cuda":
        raise UserError(
            "--backend gloo: ranks with GPUs exchange gradients by NCCL", "leave it out"
        )


def load_weights(model: nn.Module, recipe: Recipe) -> None:
    """Load the weights that a recipe starts from; a resume of this run replaces them later.

    Only tensors that fit by name and shape are loaded, so that the number of classes may differ.
    """
    if not recipe.pretrained:
        return
    path, found = _weights(recipe)
    own = model.state_dict()
    fit = {
        name: one
        for name, one in found.items()
        if name in own and tuple(one.shape) == tuple(own[name].shape)
    }
    if not fit:
        raise UserError(f"--pretrained: {path}: no weights in it match {recipe.model}")
    model.load_state_dict({**own, **fit})


def _weights(recipe: Recipe) -> tuple[Path, dict[str, torch.Tensor]]:
    if recipe.pretrained == PUBLISHED:
        file: Path | None = weights.hub_file(recipe.model)
    else:
        file = weights.file_at(Path(recipe.pretrained).expanduser())
    if file is not None:
        return file, weights.read_weights(file, recipe.model)
    info = context.read()
    path = warm_start.checkpoint_at(recipe.pretrained, info, "--pretrained")
    try:
        stored, _ = export.weights_of(path, keys=info.keys)
    except CheckpointCorrupt as error:
        raise UserError(f"--pretrained: {error.message}") from None
    return path, {name: one.read() for name, one in stored.items()}


def batch_size_of(recipe: Recipe, run: Run, task: Any, optimizer: torch.optim.Optimizer) -> int:
    """Return the samples per rank: as given, or measured at the job's first start. Collective.

    A measured size is noted beside the checkpoints. Later generations take it from there, also with
    another number of ranks or on other devices: the global batch must not change.
    """
    if not recipe.find_batch_size:
        return recipe.batch_size
    note = _note(recipe)
    (noted,) = run.all_reduce_sum(float(_read_note(note)) if run.is_main else 0.0)
    if noted:
        return int(noted)
    task.model.to(run.device)
    largest = min(_LARGEST_BATCH, max(1, len(task.train) // run.batch_world))

    def half() -> AbstractContextManager[Any]:
        kind = _HALF.get(recipe.mixed_precision)
        return nullcontext() if kind is None else torch.autocast(run.device.type, kind)

    def step(size: int) -> None:
        samples = [task.train[number % len(task.train)] for number in range(size)]
        x, y = (part.to(run.device) for part in default_collate(samples))
        with half():
            loss = task.loss(task.model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    own = batch_size.find(step, state=[task.model, optimizer], largest=largest)
    sizes = run.all_reduce_sum(*(float(own) * (at == run.rank) for at in range(run.world_size)))
    found = int(min(size for size in sizes if size))
    if run.is_main:
        _write_note(note, found)
    return found


def _note(recipe: Recipe) -> Path | None:
    folder = context.read().checkpoint_dir
    if folder is None and recipe.checkpoint_dir:
        folder = Path(recipe.checkpoint_dir)
    return None if folder is None else folder / BATCH_FILE


def _read_note(path: Path | None) -> int:
    """The noted size; 0: none."""
    if path is None or not path.is_file():
        return 0
    try:
        return max(0, int(json.loads(path.read_bytes())["batch_size"]))
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged", 'write {"batch_size": N} into it') from None


def _write_note(path: Path | None, size: int) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps({"batch_size": size}) + "\n")
    partial.replace(path)
