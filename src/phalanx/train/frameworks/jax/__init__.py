"""The library for JAX: processes that meet, pytrees as verified checkpoints, stops that save first.

    import phalanx.train.frameworks.jax as pj

    run = pj.init()
    state = run.restore(state)
    for step in run.steps(1000):
        state, loss = train_step(state, batch_of(step))
        run.log(loss=loss)
        run.commit(state)

Light until `init` is called: JAX is imported there, torch never. Outside a launcher it is a run of one
process. `arrays` knows pytrees, `processes` the small collectives, `saving` checkpoints, `run` the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.train.frameworks.jax.run import JaxRun

__all__ = ["init"]


def init(  # noqa: PLR0913 - one argument for each option
    *,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: str | None = None,
    checkpoint_keep: Mapping[str, Any] | None = None,
    checkpoint_compress: str | None = None,
    checkpoint_store: str | None = None,
    checkpoint_key_env: str | None = None,
    checkpoint_key_file: str | Path | None = None,
    scale_lr: str = "none",
    warmup_steps: int = 0,
) -> JaxRun:
    """Meet the other processes (`jax.distributed.initialize`), and begin to report and to heed stops.

    Call it before anything else touches a device. The arguments count where the launcher names no
    directory; with none from either, nothing is saved. `checkpoint_every` is `10m`, `500 steps` or
    `auto`, `checkpoint_keep` says which stay (`{"last": 3}`). `checkpoint_compress` is `zstd`,
    `checkpoint_store` an object store's prefix, and `checkpoint_key_env` or `checkpoint_key_file` names
    the encryption key. With `scale_lr` `linear` or `sqrt`, `run.lr_factor` is the number of ranks of the
    job's first start, or its square root, reached over `warmup_steps` steps; the spec's section
    `training` overrides both. Raises SpecInvalid when an argument or the environment makes no sense,
    UserError when the processes share neither a folder nor a store.
    """
    from phalanx.train.frameworks.jax.run import start

    given = {
        "dir": checkpoint_dir,
        "every": checkpoint_every,
        "keep": checkpoint_keep,
        "compress": checkpoint_compress,
        "store": checkpoint_store,
        "key_env": checkpoint_key_env,
        "key_file": checkpoint_key_file,
    }
    return start(given, {"scale_lr": scale_lr, "warmup_steps": warmup_steps})
