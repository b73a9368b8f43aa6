"""Loading of saved state into live objects, with errors that name what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.errors import RestoreMismatch
from phalanx.train.state.sharding import BatchedReads, StoredTensor
from phalanx.train.state.tree import cloned

_SHOWN = 6
_HINT = "resume with the code that wrote the checkpoint, or start a new job"


def model(target: nn.Module, saved: Mapping[str, Any], where: str) -> None:
    """Load parameters and buffers in place. Raises RestoreMismatch naming what does not fit."""
    live = target.state_dict()
    problems = [f"{name} is missing in the checkpoint" for name in live if name not in saved]
    problems += [f"{name} is not in the model" for name in saved if name not in live]
    for name, tensor in live.items():
        other = saved.get(name)
        if isinstance(tensor, torch.Tensor) and isinstance(other, torch.Tensor | StoredTensor):
            problems += _unlike(name, tensor, other)
    _refuse(problems, "the model", where)
    # Tensors already read into the model's own memory are not copied again by torch.
    filling = BatchedReads()
    placed = {name: _placed(one, live.get(name), None, filling) for name, one in saved.items()}
    filling.run()
    target.load_state_dict(placed)


def optimizer_state(target: Optimizer) -> dict[str, Any]:
    """Return what is saved of an optimizer: its state, class and parameter shapes."""
    return {
        "kind": type(target).__name__,
        "shapes": [list(parameter.shape) for parameter in parameters_of(target)],
        "state": target.state_dict(),
    }


def optimizer(target: Optimizer, saved: Mapping[str, Any], where: str) -> None:
    """Load an optimizer. Raises RestoreMismatch naming what does not fit."""
    problems = []
    if saved["kind"] != type(target).__name__:
        problems.append(f"the class is {type(target).__name__}, the checkpoint has {saved['kind']}")
    shapes = [list(parameter.shape) for parameter in parameters_of(target)]
    if len(shapes) != len(saved["shapes"]):
        problems.append(f"{len(shapes)} parameters, the checkpoint has {len(saved['shapes'])}")
    else:
        pairs = enumerate(zip(saved["shapes"], shapes, strict=True))
        problems += [
            f"parameter {at} has shape {now}, the checkpoint has {was}"
            for at, (was, now) in pairs
            if was != now
        ]
    groups = [len(group["params"]) for group in saved["state"]["param_groups"]]
    live = [len(group["params"]) for group in target.param_groups]
    if groups != live and not problems:
        problems.append(f"the groups hold {live} parameters, in the checkpoint {groups}")
    _refuse(problems, "the optimizer", where)
    saved = saved["state"]
    owners = dict(enumerate(parameters_of(target)))
    filling = BatchedReads()
    held = {number: one for number, one in owners.items() if not one.is_meta}
    state = {
        number: _placed_state(values, held[number], target, filling)
        for number, values in saved["state"].items()
        if number in held
    }
    filling.run()
    rest = {key: cloned(one) for key, one in saved.items() if key != "state"}
    target.load_state_dict({"state": state, **rest})


def parameters_of(target: Optimizer) -> list[torch.Tensor]:
    """Return all parameters of an optimizer, in the order of its groups."""
    return [parameter for group in target.param_groups for parameter in group["params"]]


def anything(target: Any, saved: Any, name: str, where: str) -> None:
    """Load any object that has `load_state_dict`. Raises RestoreMismatch when it refuses."""
    try:
        target.load_state_dict(cloned(saved))
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise RestoreMismatch(f"{name} does not fit {where}: {error}", _HINT) from error


def _placed_state(
    saved: Mapping[str, Any], owner: torch.Tensor, target: Optimizer, filling: BatchedReads
) -> dict[str, Any]:
    """Return a parameter's state, in the optimizer's tensors or sharded like the parameter."""
    held = target.state.get(owner, {})
    return {name: _placed(one, held.get(name), owner, filling) for name, one in saved.items()}


def _placed(saved: Any, held: Any, like: torch.Tensor | None, filling: BatchedReads) -> Any:
    """Return a saved value that shares no tensor with its source; valid after `filling.run()`.

    A tensor in a file is read into `held` if shape and dtype agree, else into new memory, sharded
    like `held` or, without it, like `like`.
    """
    if not isinstance(saved, StoredTensor):
        return cloned(saved)
    if not isinstance(held, torch.Tensor):
        return saved.read_like(like, filling)
    if tuple(held.shape) == saved.shape and held.dtype == saved.dtype:
        return saved.read_onto(held, filling)
    return saved.read_like(held, filling)


def _unlike(name: str, live: torch.Tensor, saved: torch.Tensor | StoredTensor) -> list[str]:
    if tuple(live.shape) != tuple(saved.shape):
        return [f"{name} has shape {list(live.shape)}, the checkpoint has {list(saved.shape)}"]
    if live.dtype != saved.dtype:
        return [f"{name} is {live.dtype}, the checkpoint has {saved.dtype}"]
    return []


def _refuse(problems: Sequence[str], what: str, where: str) -> None:
    if not problems:
        return
    shown = "\n  ".join(problems[:_SHOWN])
    more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise RestoreMismatch(f"{what} does not fit {where}:\n  {shown}{more}", _HINT)
