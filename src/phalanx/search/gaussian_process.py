"""A Gaussian process with a Matérn 5/2 kernel, fitted to the maximum of its posterior, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_SQRT5: Final = math.sqrt(5.0)
_STEPS: Final = 15
_JITTER: Final = 1e-6
#: Points that the kernel's parameters are fitted to; the prediction uses all.
_MOST_FITTED: Final = 100
#: Rates at which what was measured earlier loses its meaning, in each unit of time.
FADING: Final = (0.01, 0.1, 0.3)


class GaussianProcess:
    """Predicts scores of mean 0 and deviation 1 from features.

    One length scale for each parameter (all columns of a choice share one), noise, and no memory of
    earlier fits: the search for the maximum starts at the same place, so that equal data give an equal
    model. Priors as in Hvarfner and others 2024: length scales grow with the number of parameters.
    """

    def __init__(
        self,
        features: Array,
        scores: Array,
        extra_noise: Array,
        owners: Array,
        running: Array,
        times: Array | None = None,
    ) -> None:
        """Fit the model: `features` (n, columns), `scores` and `extra_noise` (n,).

        Points `running` (m, columns) count as known without their scores: the deviation shrinks there,
        the mean stays. This keeps parallel trials apart without inventing results (GP-BUCB, Desautels and
        others 2014). With `times` (n + m,) of all these points, what was measured long before tells
        little: covariances fade by (1 - rate) ** (difference / 2), with the rate of FADING that fits best
        (Bogunovic and others 2016).
        """
        self._owners = owners.astype(np.int64)
        self._count = int(owners.max()) + 1 if len(owners) else 1
        self._x = features
        self._mean = float(scores.mean()) if len(scores) else 0.0
        chosen = _spread_by_score(scores, _MOST_FITTED)
        self._times, self._rate = times, 0.0
        data = (features[chosen], scores[chosen] - self._mean, extra_noise[chosen])
        if times is None:
            theta, _ = self._fit(*data, np.ones((len(chosen), len(chosen))))
        else:
            at = times[: len(features)]
            fits = {rate: self._fit(*data, _faded(at[chosen], at[chosen], rate)) for rate in FADING}
            self._rate = min(FADING, key=lambda rate: fits[rate][1])
            theta = fits[self._rate][0]
        self._lengths = np.exp(theta[:-1])
        self._noise = math.exp(theta[-1])
        n = len(features)
        kernel = self._kernel(features, features) * self._fade(n, n)
        kernel += np.diag(self._noise + extra_noise + _JITTER)
        self._weights = np.linalg.solve(kernel, scores - self._mean)
        self._known = np.concatenate([features, running])
        noise = np.concatenate([self._noise + extra_noise, np.full(len(running), self._noise)])
        whole = self._kernel(self._known, self._known) * self._fade(len(noise), len(noise))
        self._inverse = _inverse_factor(whole + np.diag(noise))

    def _fade(self, rows: int, columns: int) -> Array:
        """How much of the covariance of known points is left, by the difference of their times."""
        if self._times is None:
            return np.ones((rows, columns))
        return _faded(self._times[:rows], self._times[:columns], self._rate)

    def predict(self, features: Array, at: float | None = None) -> tuple[Array, Array]:
        """Mean and standard deviation at (m, columns) features, each (m,); with times, at one of them."""
        across = self._kernel(features, self._known)
        if self._times is not None and at is not None:
            across = across * _faded(np.array([at]), self._times, self._rate)
        mean = self._mean + across[:, : len(self._x)] @ self._weights
        seen = across @ self._inverse.T
        variance = 1.0 - np.einsum("ij,ij->i", seen, seen)
        return mean, np.sqrt(np.maximum(variance, 1e-10))

    def _kernel(self, one: Array, other: Array) -> Array:
        scale = 1.0 / self._lengths[self._owners]
        a, b = one * scale, other * scale
        squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * (a @ b.T)
        distance = _SQRT5 * np.sqrt(np.maximum(squared, 0.0))
        kernel: Array = (1.0 + distance + distance * distance / 3.0) * np.exp(-distance)
        return kernel

    def _fit(self, x: Array, y: Array, extra: Array, fade: Array) -> tuple[Array, float]:
        """The logarithms of length scales and noise at the maximum of the posterior, and its loss."""
        n = len(x)
        squares = np.zeros((self._count, n, n))
        for column, owner in enumerate(self._owners):
            squares[owner] += (x[:, column][:, None] - x[:, column][None, :]) ** 2
        flat = squares.reshape(self._count, n * n)
        centre = np.full(self._count + 1, math.sqrt(2.0) + 0.5 * math.log(self._count))
        spread = np.full(self._count + 1, math.sqrt(3.0))
        centre[-1], spread[-1] = -4.0, 1.0

        def loss(theta: Array) -> tuple[float, Array]:
            inverse_squares = np.exp(-2.0 * theta[:-1])
            distance = _SQRT5 * np.sqrt(inverse_squares @ flat).reshape(n, n)
            decay = np.exp(-distance) * fade
            noise = math.exp(theta[-1])
            kernel = (1.0 + distance + distance * distance / 3.0) * decay
            kernel[np.diag_indices(n)] += noise + extra
            factor = _inverse_factor(kernel)
            weights = factor.T @ (factor @ y)
            log_det = -2.0 * np.log(np.diag(factor)).sum()
            outer = np.outer(weights, weights) - factor.T @ factor
            slope = 5.0 / 3.0 * (1.0 + distance) * decay
            gradient = np.empty_like(theta)
            gradient[:-1] = -0.5 * inverse_squares * (flat @ (outer * slope).ravel())
            gradient[-1] = -0.5 * noise * np.trace(outer)
            apart = (theta - centre) / spread
            value = 0.5 * float(y @ weights) + 0.5 * log_det + 0.5 * float(apart @ apart)
            return value, gradient + apart / spread

        start = centre.copy()
        start[:-1] = math.log(0.5) + 0.5 * math.log(self._count)
        theta = minimised(loss, start, np.full(len(start), -9.0), np.full(len(start), 5.0))
        return theta, loss(theta)[0]


def _faded(one: Array, other: Array, rate: float) -> Array:
    faded: Array = (1.0 - rate) ** (np.abs(one[:, None] - other[None, :]) / 2.0)
    return faded


def minimised(
    loss: Callable[[Array], tuple[float, Array]], start: Array, low: Array, high: Array
) -> Array:
    """A local minimum within a box by L-BFGS with backtracking; `loss` returns value and gradient."""
    at = start
    value, slope = loss(at)
    pairs: list[tuple[Array, Array]] = []
    for _ in range(_STEPS):
        direction = -_descent(slope, pairs)
        if float(direction @ slope) >= 0:
            direction, pairs = -slope, []
        size = 1.0 if pairs else 1.0 / max(1.0, float(np.abs(slope).sum()))
        for _ in range(12):
            after = np.clip(at + size * direction, low, high)
            value_after, slope_after = loss(after)
            if value_after <= value + 1e-4 * float((after - at) @ slope):
                break
            size *= 0.4
        else:
            return at
        moved, turned = after - at, slope_after - slope
        if float(moved @ turned) > 1e-10:
            pairs = [*pairs[-7:], (moved, turned)]
        done = abs(value - value_after) < 1e-5 * (1.0 + abs(value))
        at, value, slope = after, value_after, slope_after
        if done:
            break
    return at


def _descent(slope: Array, pairs: list[tuple[Array, Array]]) -> Array:
    """The two-loop recursion of L-BFGS (Nocedal 1980)."""
    direction = slope.copy()
    factors = []
    for moved, turned in reversed(pairs):
        factor = float(moved @ direction) / float(moved @ turned)
        factors.append(factor)
        direction -= factor * turned
    if pairs:
        moved, turned = pairs[-1]
        direction *= float(moved @ turned) / float(turned @ turned)
    for (moved, turned), factor in zip(pairs, reversed(factors), strict=True):
        direction += moved * (factor - float(turned @ direction) / float(moved @ turned))
    return direction


def _inverse_factor(matrix: Array) -> Array:
    """The inverse of the lower Cholesky factor, with as much added to the diagonal as it needs."""
    jitter = _JITTER
    while True:
        try:
            factor = np.linalg.cholesky(matrix + jitter * np.eye(len(matrix)))
        except np.linalg.LinAlgError:
            jitter *= 10.0
            continue
        return np.asarray(np.linalg.inv(factor), dtype=np.float64)


def _spread_by_score(scores: Array, most: int) -> Array:
    """At most `most` indices: the better half of them the best, the rest evenly over the others."""
    order = np.argsort(scores, kind="stable")
    if len(order) <= most:
        return np.sort(order)
    best, rest = order[: most // 2], order[most // 2 :]
    even = rest[np.linspace(0, len(rest) - 1, most - most // 2).astype(np.int64)]
    return np.sort(np.concatenate([best, even]))
