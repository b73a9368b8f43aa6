"""Make a table of real learning curves: small networks on scikit-learn's 1,797 digits.

    python bench/search/make_digits.py --seed 1 --out bench/search/digits_1.npz

Each of 291 networks with 6 hyperparameters is trained for 27 epochs on 1,198 images; the table has the
share of errors on the 599 others after each epoch. Two tables of different draws are kept, so that rules
tuned on one are judged on the other. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path

import numpy as np

NUM_NETWORKS, NUM_EPOCHS = 291, 27
NAMES = ("lr", "hidden", "layers", "batch_size", "alpha", "momentum")


def draw(rng: random.Random) -> tuple[float, ...]:
    return (
        10 ** rng.uniform(-4, 0),
        2 ** rng.randint(2, 7),
        rng.randint(1, 3),
        2 ** rng.randint(4, 8),
        10 ** rng.uniform(-6, 0),
        rng.uniform(0.0, 0.99),
    )


def curve(params: tuple[float, ...], seed: int) -> list[float]:
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order] / 16.0, labels[order]
    lr, hidden, layers, batch_size, alpha, momentum = params
    network = MLPClassifier(
        hidden_layer_sizes=(int(hidden),) * int(layers),
        solver="sgd",
        learning_rate_init=lr,
        batch_size=int(batch_size),
        alpha=alpha,
        momentum=momentum,
        random_state=seed,
    )
    cut = len(labels) * 2 // 3
    errors = []
    for _ in range(NUM_EPOCHS):
        try:
            network.partial_fit(images[:cut], labels[:cut], classes=np.arange(10))
            wrong = float(np.mean(network.predict(images[cut:]) != labels[cut:]))
        except ValueError:  # the weights are not finite
            wrong = 0.9
        errors.append(wrong)
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = random.Random(f"digits/{given.seed}")
    params = [draw(rng) for _ in range(NUM_NETWORKS)]
    curves = [curve(one, given.seed * 1000 + number) for number, one in enumerate(params)]
    np.savez_compressed(
        given.out,
        params=np.array(params, dtype=np.float32),
        errors=np.round(np.array(curves) * 599).astype(np.uint16),
    )
    print(f"{given.out}: {given.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
