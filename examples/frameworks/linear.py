"""Any framework: a scikit-learn model trained round by round, its files committed as checkpoints.

phalanx submit examples/frameworks/linear.yaml --follow
python examples/frameworks/linear.py --dir /tmp/linear

Killed at any moment it goes on with the newest folder that verifies.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from phalanx.train import folders


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--dir", help="where checkpoints go outside of the platform")
    args = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    x = x / 16.0
    held_out = np.arange(len(y)) % 5 == 0
    model, begin = SGDClassifier(random_state=0), 0
    model.partial_fit(x[:10], y[:10], classes=np.arange(10))
    found = folders.newest(args.dir)
    if found is not None:
        path, begin = found
        arrays = np.load(path / "weights.npz")
        model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
        model.t_ = json.loads((path / "state.json").read_text())["t"]
        print(f"goes on after round {begin}", flush=True)
    for step in range(begin + 1, args.rounds + 1):
        order = np.random.default_rng(step).permutation(np.flatnonzero(~held_out))
        model.partial_fit(x[order], y[order])
        accuracy = float(model.score(x[held_out], y[held_out]))
        print(f"round {step}: accuracy {accuracy:.4f}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            np.savez(Path(folder, "weights.npz"), coef=model.coef_, intercept=model.intercept_)
            Path(folder, "state.json").write_text(json.dumps({"t": model.t_}))
            folders.save(folder, step=step, metrics={"accuracy": accuracy}, checkpoint_dir=args.dir)


if __name__ == "__main__":
    main()
