"""Fixed-step descent of the closed form over many seeds at once: exact, in place, in float64.

One step, for every seed, head and feature (see `model.gradient`), with g = eta * curvature * (optimum - w):

    q += g o v (1 - tanh^2) k      o += g tanh v
    k += g o v (1 - tanh^2) q      v += g tanh o

Seeds lie along the last axis, so that a run's arithmetic does not depend on how many others run beside it; sums over
heads are taken head by head for the same reason. The pairs (q, o) and (k, v) are stored together: half the numpy calls.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cel_core.toy.config import Array, ToyConfig
from cel_core.toy.model import KEY, OUTPUT, QUERY, VALUE, initial_parameters


class DiagonalDescent:
    """The state of a block of runs of the proven model (also with other weights, more tasks, a larger start)."""

    def __init__(self, config: ToyConfig, seeds: Sequence[int]) -> None:
        start = np.moveaxis(initial_parameters(config, seeds), 0, -1)  # 4, n_heads, n_features, n_seeds
        self._left = np.stack([start[QUERY], start[OUTPUT]])  # 2, n_heads, n_features, n_seeds
        self._right = np.stack([start[KEY], start[VALUE]])
        self._optimum = config.optimum[:, None]
        self._rate = (config.eta * config.curvature)[:, None]
        self._allocate()

    def _allocate(self) -> None:
        """Buffers for the present number of seeds; the views below are looked up once, not in every step."""
        self._product = np.empty_like(self._left)  # q k and o v
        self._force = np.empty_like(self._left)  # eta times minus the gradient by q k and by o v
        self._move_left = np.empty_like(self._left)
        self._tanh = np.empty_like(self._left[0])
        self._heads = np.empty_like(self._left[0])  # c_hj
        self._pull = np.empty_like(self._left[0, 0])  # n_features, n_seeds: w, then g
        self._goal = np.ascontiguousarray(np.broadcast_to(self._optimum, self._pull.shape))

    def _find_moves(self) -> None:
        """Leave the next step's changes in `_move_left` and `_force`."""
        product, force, tanh, pull = self._product, self._force, self._tanh, self._pull
        np.multiply(self._left, self._right, out=product)
        np.tanh(product[0], out=tanh)
        np.multiply(product[1], tanh, out=self._heads)
        np.copyto(pull, self._heads[0])
        for head in self._heads[1:]:
            np.add(pull, head, out=pull)
        np.subtract(self._goal, pull, out=pull)
        np.multiply(pull, self._rate, out=pull)
        np.multiply(tanh, pull, out=force[1])
        np.multiply(tanh, tanh, out=force[0])
        np.subtract(1.0, force[0], out=force[0])
        np.multiply(force[0], product[1], out=force[0])
        np.multiply(force[0], pull, out=force[0])
        np.multiply(force, self._right, out=self._move_left)
        np.multiply(force, self._left, out=force)

    def advance(self, n_steps: int) -> None:
        """Take `n_steps` steps, in place."""
        for _ in range(n_steps):
            self._find_moves()
            np.add(self._left, self._move_left, out=self._left)
            np.add(self._right, self._force, out=self._right)

    def unmoving(self) -> NDArray[np.bool_]:
        """Runs whose next step changes no bit of any scalar, and so no later step either; shape (n_seeds,)."""
        self._find_moves()
        still = (self._left + self._move_left == self._left) & (self._right + self._force == self._right)
        return still.all(axis=(0, 1, 2))

    def coefficients(self) -> Array:
        """c_hj of every run, a copy of shape (n_seeds, n_heads, n_features)."""
        heads = self._left[1] * self._right[1] * np.tanh(self._left[0] * self._right[0])
        return np.ascontiguousarray(np.moveaxis(heads, -1, 0))

    def largest(self) -> Array:
        """Size of the largest scalar of every run, shape (n_seeds,)."""
        return np.maximum(np.abs(self._left), np.abs(self._right)).max(axis=(0, 1, 2))

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with some of the runs only; `rows` has shape (n_seeds,)."""
        self._left = np.ascontiguousarray(self._left[..., rows])
        self._right = np.ascontiguousarray(self._right[..., rows])
        self._allocate()
