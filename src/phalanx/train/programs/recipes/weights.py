"""Initial weights of a recipe: checkpoints of other runs, files of other trainers, torch's hub cache.

Published weights have torchvision's names; `from_torchvision` gives them the names of `images`. Files are
never unpickled: torch reads them with `weights_only`.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from phalanx.errors import UserError

FILE_SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")
_SOURCE = "https://download.pytorch.org/models/"
_NAMED_DIGEST = re.compile(r"-([0-9a-f]{8})\.pth$")
_BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_RESNET = (
    (r"conv1\.", "stem.1.0."),
    (r"bn1\.", "stem.1.1."),
    (r"fc\.", "head."),
)
_VIT = (
    (r"class_token$", "whole"),
    (r"conv_proj\.", "cut."),
    (r"encoder\.pos_embedding$", "places"),
    (r"encoder\.ln\.", "norm."),
    (r"heads\.head\.", "head."),
)
_VIT_LAYER = (
    (r"ln_1\.", "norm1."),
    (r"ln_2\.", "norm2."),
    (r"self_attention\.", "self_attn."),
    (r"mlp\.(0|linear_1)\.", "linear1."),
    (r"mlp\.(3|linear_2)\.", "linear2."),
)


def hub_file(model: str, folder: Path | None = None) -> Path:
    """The published weights of a model in torch's hub cache. Raises UserError where there are none."""
    where = Path(torch.hub.get_dir()) / "checkpoints" if folder is None else folder
    found = sorted(where.glob(f"{model}-*.pth"))
    if not found:
        raise UserError(
            f"--pretrained true: {where} holds no {model}-*.pth, and nothing is downloaded",
            f"copy the file from {_SOURCE} there on every node, or write its path",
        )
    return found[-1]


def file_at(path: Path) -> Path | None:
    """The file of weights at a path: the file itself, or the only one of a folder; else None."""
    if path.is_file():
        return path
    found = [one for one in sorted(path.glob("*")) if one.suffix in FILE_SUFFIXES]
    return found[0] if len(found) == 1 else None


def read_weights(path: Path, model: str) -> dict[str, torch.Tensor]:
    """Named tensors of a file, with the names of `images`. Raises UserError for an unreadable one."""
    try:
        named = _NAMED_DIGEST.search(path.name)
        if named is not None and not _digest(path).startswith(named[1]):
            raise UserError(f"--pretrained: {path} is damaged: its digest is not that of its name")
        if path.suffix == ".safetensors":
            found: Any = _safetensors(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # torch raises many kinds for a file that is none
        said = str(error).partition("\n")[0][:200]
        raise UserError(f"--pretrained: {path} cannot be read: {said}") from None
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping):
        raise UserError(f"--pretrained: {path} holds no named weights")
    tensors = {
        str(name).removeprefix("module."): one
        for name, one in found.items()
        if isinstance(one, torch.Tensor)
    }
    return from_torchvision(tensors, model)


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file. Raises ValueError or KeyError for one that is damaged."""
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from("<Q", data)
    header, start = json.loads(data[8 : 8 + size]), 8 + size
    found = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        (begin, end), kind = row["data_offsets"], _DTYPES[row["dtype"]]
        if not 0 <= begin <= end <= len(data) - start:
            raise ValueError(f"tensor {name} lies outside the file")
        one = (
            torch.frombuffer(
                data, dtype=kind, count=(end - begin) // kind.itemsize, offset=start + begin
            )
            if end > begin
            else torch.empty(0, dtype=kind)
        )
        found[name] = one.reshape(row["shape"])
    return found


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def from_torchvision(tensors: Mapping[str, torch.Tensor], model: str) -> dict[str, torch.Tensor]:
    """Rename torchvision's tensors; those with other names are returned as they are."""
    rename = _vit_name if model == "vit_b_16" else _resnet_name
    return {rename(name, model): one for name, one in tensors.items()}


def _resnet_name(name: str, model: str) -> str:
    if found := re.fullmatch(r"layer([1-4])\.(\d+)\.(.+)", name):
        depths = _BLOCKS.get(model, ())
        number = sum(depths[: int(found[1]) - 1]) + int(found[2])
        rest = found[3]
        if part := re.fullmatch(r"(conv|bn)([123])\.(.+)", rest):
            place = 2 * (int(part[2]) - 1)
            return f"blocks.{number}.inside.{place}.{int(part[1] == 'bn')}.{part[3]}"
        return f"blocks.{number}.{rest.replace('downsample.', 'shortcut.', 1)}"
    return _first(_RESNET, name)


def _vit_name(name: str, _model: str) -> str:
    if found := re.fullmatch(r"encoder\.layers\.encoder_layer_(\d+)\.(.+)", name):
        return f"layers.layers.{found[1]}.{_first(_VIT_LAYER, found[2])}"
    return _first(_VIT, name)


def _first(rules: tuple[tuple[str, str], ...], name: str) -> str:
    for pattern, new in rules:
        if re.match(pattern, name):
            return re.sub(f"^{pattern}", new, name)
    return name
