"""A fork begins with the state of another trial, and with its own parameters.

Restoring an optimizer restores the parent's options, its learning rate among them. A checkpoint of a trial
therefore holds the options that the script gave its optimizers; what differs from those of the fork's own
script is what the parameters changed, and is applied after the restore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # scripts of JAX have no torch
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

Options = list[list[dict[str, Any]]]


class OptimizerOptions:
    """The options of each parameter group, as the script made the optimizers."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = dict(params)
        self._own: Options = []
        self._parents: Options | None = None

    def watch(self, optimizer: Optimizer) -> None:
        """Add an optimizer, before its state is restored."""
        self._own.append([_plain(group) for group in optimizer.param_groups])

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {"params": self._params, "options": self._own}

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Remember the options of the checkpoint, if it was made with other parameters."""
        known = "options" in saved and saved.get("params") != self._params
        self._parents = saved["options"] if known else None

    def apply(self, optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler]) -> None:
        """Give optimizers and schedulers the options that the parameters changed."""
        parents, self._parents = self._parents, None
        for optimizer, own, before in zip(optimizers, self._own, parents or (), strict=False):
            _set_options(optimizer, own, before)
            _set_rates(optimizer, own, before, [s for s in schedulers if s.optimizer is optimizer])


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in group.items():
        if isinstance(value, tuple | list) and key != "params":
            found[key] = [float(one) for one in value if not isinstance(one, str)]
        elif isinstance(value, int | float):
            found[key] = value
    rate = group.get("initial_lr", group.get("lr"))
    return found | ({} if rate is None else {"lr": float(rate)})


def _set_options(
    optimizer: Optimizer, own: list[dict[str, Any]], before: list[dict[str, Any]]
) -> None:
    for group, now, was in zip(optimizer.param_groups, own, before, strict=False):
        for key in now.keys() - {"lr", "initial_lr"}:
            if key in group and now[key] != was.get(key):
                value = now[key]
                group[key] = tuple(value) if isinstance(group[key], tuple) else value


def _set_rates(
    optimizer: Optimizer,
    own: list[dict[str, Any]],
    before: list[dict[str, Any]],
    schedulers: list[LRScheduler],
) -> None:
    """Set base rates, and the rate that the schedule has reached with them."""
    groups = optimizer.param_groups
    changed = {
        at: (was["lr"], now["lr"])
        for at, (now, was) in enumerate(zip(own, before, strict=False))
        if now.get("lr") != was.get("lr")
    }
    if not changed:
        return
    for at, (_, rate) in changed.items():
        if "initial_lr" in groups[at]:
            groups[at]["initial_lr"] = rate
        for scheduler in schedulers:
            for one in (scheduler, *getattr(scheduler, "_schedulers", ())):
                if hasattr(one, "base_lrs"):
                    one.base_lrs[at] = rate
    reached = _closed_form(schedulers[0]) if len(schedulers) == 1 else None
    for at, (was, now) in changed.items():
        current = float(groups[at]["lr"])
        rate = now if not was else current * now / was
        _set_rate(groups[at], rate if reached is None else float(reached[at]))
    for scheduler in schedulers:
        if hasattr(scheduler, "_last_lr"):
            vars(scheduler).update(_last_lr=[float(group["lr"]) for group in groups])


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if hasattr(group["lr"], "fill_"):  # a tensor, which a compiled step reads
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _closed_form(scheduler: LRScheduler) -> list[Any] | None:
    """The rates of a schedule from its base rates alone; None for one that goes step by step."""
    from torch.optim.lr_scheduler import LambdaLR

    if isinstance(scheduler, LambdaLR):
        pairs = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        return [base * factor(scheduler.last_epoch) for base, factor in pairs]
    form = getattr(scheduler, "_get_closed_form_lr", None)
    return None if form is None else list(form())
