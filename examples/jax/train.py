"""A JAX script that survives: two layers on a made-up problem, data-parallel over all processes.

python examples/jax/train.py --dir /tmp/jax
phalanx submit examples/jax/job.yaml --follow

The batch of a step is a function of the step, so a resume needs no position in the data.
"""

import argparse
import hashlib
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import phalanx.train.jax as pj

BATCH = 48


def loss_of(params, x, y):
    hidden = jnp.tanh(x @ params["in"])
    return jnp.mean((hidden @ params["out"] - y) ** 2)


def train_step(state, x, y):
    loss, gradient = jax.value_and_grad(loss_of)(state["params"], x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradient)
    params = jax.tree.map(lambda p, m: p - 0.05 * m, state["params"], momentum)
    key, noise = jax.random.split(state["key"])
    # A little noise from a key of its own: what a resume must take up as well.
    params["out"] += 1e-4 * jax.random.normal(noise, params["out"].shape)
    return {"params": params, "momentum": momentum, "key": key}, loss


def batch_of(step, sharding):
    rng = np.random.default_rng(step)
    x = rng.standard_normal((BATCH, 16)).astype(np.float32)
    y = np.sin(x.sum(axis=1, keepdims=True))
    return [jax.make_array_from_callback(a.shape, sharding, lambda i, a=a: a[i]) for a in (x, y)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step")
    parser.add_argument("--dir", help="where checkpoints go outside of the platform")
    parser.add_argument("--digest", type=Path, help="write a digest of the final parameters here")
    args = parser.parse_args()
    run = pj.init(checkpoint_dir=args.dir)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    rows = NamedSharding(mesh, PartitionSpec("data"))
    # The hidden layer's momentum is sharded over the processes: each saves its own part.
    layout = {"in": NamedSharding(mesh, PartitionSpec(None, "data")), "out": everywhere}

    def fresh():
        one, two, three = jax.random.split(jax.random.key(0), 3)
        shapes = {"in": (16, 48), "out": (48, 1)}
        params = {
            "in": 0.3 * jax.random.normal(one, shapes["in"]),
            "out": 0.3 * jax.random.normal(two, shapes["out"]),
        }
        momentum = {name: jnp.zeros(shape) for name, shape in shapes.items()}
        return {"params": params, "momentum": momentum, "key": three}

    placed = {
        "params": {"in": everywhere, "out": everywhere}, "momentum": layout, "key": everywhere,
    }  # fmt: skip
    # Layouts are fixed, so that a step after a resume adds up in the same order as without one.
    step_of = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, everywhere))
    state = run.restore(jax.jit(fresh, out_shardings=placed)())
    print(f"process {run.rank} of {run.world_size} begins at step {run.step}", flush=True)
    for step in run.steps(args.steps):
        state, loss = step_of(state, *batch_of(step, rows))
        run.log(loss=loss)
        run.commit(state)
        time.sleep(args.pause)
    if args.digest and run.is_main:
        found = hashlib.sha256()
        for name in ("in", "out"):
            found.update(np.asarray(state["params"][name]).tobytes())
        args.digest.write_text(found.hexdigest())


if __name__ == "__main__":
    main()
