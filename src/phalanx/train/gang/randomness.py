"""Random generators that can be saved and restored: seeds by arithmetic, states as bytes.

Three generators are global in a training process: torch's, numpy's and Python's. Data loading must not
disturb them, samples must not depend on them, and a resume must put them back exactly.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
from collections.abc import Iterator

import numpy as np
import torch

_MASK = (1 << 64) - 1
_LEN = struct.Struct("<I")
_NUMPY_WORDS = 624
_PYTHON_WORDS = 625


def mix(*parts: int) -> int:
    """Mix several numbers into one 64-bit seed (SplitMix64)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def seed_everything(seed: int) -> None:
    """Seed the three global generators, and those of every GPU."""
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def seed_sample(seed: int) -> None:
    """Seed the three global generators of the CPU; cheap, because it is called once per sample."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def capture() -> bytes:
    """Return the state of the global generators, for `restore`."""
    state = np.random.get_state(legacy=False)
    if not isinstance(state, dict) or state["bit_generator"] != "MT19937":
        raise RuntimeError("numpy's global generator has been replaced; it cannot be saved")
    version, words, gauss = random.getstate()
    parts = {
        "numpy_pos": int(state["state"]["pos"]),
        "numpy_has_gauss": int(state["has_gauss"]),
        "numpy_gauss": float(state["gauss"]).hex(),
        "python_version": version,
        "python_gauss": None if gauss is None else gauss.hex(),
        "cuda": torch.cuda.get_rng_state().numpy().tobytes().hex() if _cuda() else None,
    }
    meta = json.dumps(parts).encode()
    return b"".join(
        (
            _LEN.pack(len(meta)),
            meta,
            state["state"]["key"].astype("<u4").tobytes(),
            np.array(words, dtype="<u4").tobytes(),
            torch.get_rng_state().numpy().tobytes(),
        )
    )


def restore(data: bytes) -> None:
    """Restore the global generators. Raises ValueError when the bytes are no generator state."""
    try:
        (length,) = _LEN.unpack_from(data)
        at = _LEN.size + length
        meta = json.loads(data[_LEN.size : at])
        words = np.frombuffer(data, "<u4", _NUMPY_WORDS + _PYTHON_WORDS, at)
        rest = bytearray(data[at + words.nbytes :])
        gauss = meta["python_gauss"]
        numbers = tuple(int(word) for word in words[_NUMPY_WORDS:])
        random.setstate(
            (meta["python_version"], numbers, None if gauss is None else float.fromhex(gauss))
        )
        key = words[:_NUMPY_WORDS].astype(np.uint32)
        np.random.set_state(
            (
                "MT19937",
                key,
                meta["numpy_pos"],
                meta["numpy_has_gauss"],
                float.fromhex(meta["numpy_gauss"]),
            )
        )
        torch.set_rng_state(torch.frombuffer(rest, dtype=torch.uint8).clone())
        if meta["cuda"] is not None and _cuda():
            device = torch.frombuffer(bytearray.fromhex(meta["cuda"]), dtype=torch.uint8)
            torch.cuda.set_rng_state(device.clone())
    except (struct.error, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"not a generator state: {error}") from error


def initial_state(seed: int, *place: int) -> bytes:
    """Return generator states for a rank that a checkpoint does not hold."""
    with undisturbed():
        seed_sample(mix(seed, *place))
        return capture()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the CPU's global generators at the end of the block."""
    before = (torch.get_rng_state(), np.random.get_state(), random.getstate())
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _cuda() -> bool:
    ready: bool = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return ready
