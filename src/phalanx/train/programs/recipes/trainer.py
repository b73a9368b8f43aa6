"""The loop of the ready-made trainer: an ordinary script on `phalanx.train`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import phalanx.train as pt
from phalanx.errors import UserError
from phalanx.train.gang import randomness
from phalanx.train.programs.recipes import datasets, images, starting, texts
from phalanx.train.programs.recipes.settings import Recipe
from phalanx.train.run import Run

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
_PROFILE_FROM = 10
_HELD_OUT_SEED = 0
_BLOCKS = tuple(
    block.__name__
    for block in (images.Residual, nn.TransformerEncoderLayer, texts.TransformerLayer)
)


@dataclass(frozen=True, slots=True)
class Task:
    """A model with its data, loss and score."""

    model: nn.Module
    train: Any
    held_out: Any
    loss: Loss
    score: str


def task_of(recipe: Recipe) -> Task:
    """Build the task of a recipe. Raises NotFound, UserError."""
    if recipe.is_image:
        train, held_out, found = datasets.images(recipe)
        count = recipe.num_classes or found
        if count < found:
            raise UserError(f"--num-classes {count}: the data has {found} classes")

        def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(model(x), y, label_smoothing=recipe.label_smoothing)

        return Task(image_model(recipe, count), train, held_out, loss, "val_acc")
    train, held_out, _ = datasets.texts(recipe)
    causal = recipe.model == "gpt"
    model = texts.Transformer(recipe.block, recipe.scale, causal=causal)
    return Task(
        model,
        train,
        held_out,
        texts.next_byte_loss if causal else texts.masked_byte_loss,
        "val_loss",
    )


def image_model(recipe: Recipe, num_classes: int) -> nn.Module:
    """Return the network of a recipe."""
    size = datasets.image_size(recipe)
    if recipe.model == "vit_b_16":
        return images.ViT(num_classes, size, recipe.scale)
    return images.ResNet(recipe.model, num_classes, size, recipe.scale)


def optimizer_of(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD for residual networks, AdamW for transformers; only matrices decay."""
    flat = [one for one in model.parameters() if one.ndim < 2]
    rest = [one for one in model.parameters() if one.ndim >= 2]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": flat, "weight_decay": 0.0}]
    if recipe.model.startswith("resnet"):
        return torch.optim.SGD(
            groups,
            recipe.rate,
            recipe.momentum,
            weight_decay=recipe.decay,
            nesterov=recipe.momentum > 0,
        )
    return torch.optim.AdamW(groups, recipe.rate, (0.9, 0.95), weight_decay=recipe.decay)


def schedule_of(
    recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the learning rate schedule: warm-up, then cosine or constant."""
    up = round(recipe.warmup_epochs * steps_per_epoch)
    steps = recipe.epochs * steps_per_epoch
    whole = max(1, min(steps, recipe.max_steps or steps) - up)

    def factor(step: int) -> float:
        if step < up:
            return (step + 1) / up
        if recipe.lr_scheduler == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - up) / whole)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def steps_of(recipe: Recipe, num_samples: int, num_ranks: int) -> int:
    """Return the steps of an epoch on the job's full number of ranks. Raises UserError for none."""
    batch = recipe.batch_size * num_ranks
    if num_samples < batch:
        said = f"{num_samples} samples for training are less than a batch on {num_ranks} ranks, {batch}"
        raise UserError(said, "lower --batch-size, the samples of each rank")
    return math.ceil(num_samples // batch / recipe.gradient_accumulation_steps)


def train(recipe: Recipe) -> None:
    """Train a recipe. Raises PlatformError for bad data or settings."""
    run = pt.init(
        seed=recipe.seed,
        accumulate=recipe.gradient_accumulation_steps,
        clip=recipe.clip or None,
        precision=recipe.mixed_precision,
        scale_lr=recipe.scale_lr,
        activation_checkpointing=list(_BLOCKS) if recipe.gradient_checkpointing else False,
        checkpoint_dir=recipe.checkpoint_dir or None,
        checkpoint_every=f"{recipe.checkpoint_freq} steps" if recipe.checkpoint_freq else None,
        checkpoint_keep={"last": recipe.keep_last_n} if recipe.checkpoint_dir else None,
        resume_from=None if recipe.resume_from == "latest" else recipe.resume_from,
    )
    starting.check_backend(recipe.backend, run.device.type, _say if run.is_main else _ignore)
    task = task_of(recipe)
    starting.load_weights(task.model, recipe)
    optimizer = optimizer_of(recipe, task.model)
    recipe = replace(recipe, batch_size=starting.batch_size_of(recipe, run, task, optimizer))
    if run.is_main and recipe.find_batch_size:
        _say(f"batch size: {recipe.batch_size} samples per rank, measured at the first start")
    workers = recipe.num_dataloader_workers
    more: dict[str, Any] = {}
    if workers:
        more = {"prefetch_factor": recipe.prefetch_factor, "persistent_workers": True}
    loader = DataLoader(
        task.train, recipe.batch_size, shuffle=True, num_workers=workers, drop_last=True, **more
    )
    held_out = run.eval_loader(DataLoader(task.held_out, recipe.batch_size))
    scheduler = schedule_of(recipe, optimizer, steps_of(recipe, len(task.train), run.batch_world))
    model, optimizer, scheduler, loader = run.prepare(task.model, optimizer, scheduler, loader)
    last = recipe.max_steps or math.inf
    loss: torch.Tensor | None = None  # as long as a resume at an epoch's end has only to evaluate
    for epoch in run.epochs(recipe.epochs if run.step < last else 0):
        for x, y in loader:
            if recipe.profile_steps and run.step == _PROFILE_FROM:
                run.profile(steps=recipe.profile_steps)
            loss = task.loss(model, x, y)
            run.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            run.log(loss=loss, lr=scheduler.get_last_lr()[0])
            if run.step >= last:
                break
        score = evaluate(run, model, task, held_out)
        if run.is_main:
            shown = "" if loss is None else f"loss {float(loss.detach()):.4f}  "
            _say(
                f"epoch {epoch + 1}/{recipe.epochs}  step {run.step}  {shown}{task.score} {score:.4f}"
            )
        run.report(epoch=epoch, **{task.score: score})
        if run.step >= last:
            break
    run.finish()


def evaluate(run: Run, model: nn.Module, task: Task, loader: Any) -> float:
    """Return the accuracy for images, the mean loss for texts, over all ranks."""
    model.eval()
    total = seen = 0.0
    with torch.no_grad(), randomness.undisturbed():
        torch.manual_seed(_HELD_OUT_SEED)  # hides the same bytes every time
        for x, y in loader:
            if task.score == "val_acc":
                total += float((model(x).argmax(1) == y).sum())
            else:
                total += float(task.loss(model, x, y)) * len(x)
            seen += len(x)
    model.train()
    total, seen = run.all_reduce_sum(total, seen)
    return total / max(seen, 1.0)


def _ignore(text: str) -> None:
    """Say nothing: another rank does."""


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
