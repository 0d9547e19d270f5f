"""Descent beyond the theorems: dense projections, learnt encodings, Adam, sampled batches, label noise, weight decay.

None of this is covered by a proof; the labels in `Beyond` say so wherever a result is shown.

1. *Dense projections, learnt encoding*: see `projections`.
2. *Sampled batches.* Each step draws `batch_size` examples of each task. The gradient needs only the sample mean of the
   product of the task's two signs, which is a binomial, and the noise's projections on them, which are normal: both are
   drawn from their exact distribution instead of example by example.
3. *Adam* with bias correction. *Weight decay* is decoupled and spares the encoding.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cel_core.toy.config import Array, ToyConfig
from cel_core.toy.model import initial_parameters, summed
from cel_core.toy.projections import projections

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
DRAW_STEPS = 256
"""Steps' worth of sampling noise drawn at a time from each run's generator."""


class Moments(NamedTuple):
    """One step's sampled batches, as far as the gradient sees them; arrays of shape (n_tasks, n_seeds)."""

    correlation: Array  # sample mean of conflict sign times own sign
    noise_conflict: Array  # sample mean of label noise times conflict sign
    noise_own: Array  # sample mean of label noise times own sign


class Batches:
    """The sampled batches of a block of runs, each run from its own stream (another one than its initialisation's)."""

    def __init__(self, config: ToyConfig, seeds: Sequence[int]) -> None:
        self._n_tasks = config.beyond.n_tasks
        self._size = config.beyond.batch_size
        self._noise = config.beyond.label_noise
        self._generators = [np.random.Generator(np.random.Philox(key=[seed, 1])) for seed in seeds]
        self._drawn: Array = np.empty((0, 3, self._n_tasks, len(seeds)))
        self._used = 0

    def draw(self) -> Moments:
        """The next step's batches."""
        if self._used == len(self._drawn):
            self._drawn = np.stack([self._draw_ahead(each) for each in self._generators], axis=-1)
            self._used = 0
        self._used += 1
        return Moments(*self._drawn[self._used - 1])

    def _draw_ahead(self, generator: np.random.Generator) -> Array:
        """Shape (DRAW_STEPS, 3, n_tasks): correlation and both projected noises."""
        shape = (DRAW_STEPS, self._n_tasks)
        correlation = 2 * generator.binomial(self._size, 0.5, shape) / self._size - 1
        conflict = own = np.zeros(shape)
        if self._noise:
            conflict, independent = generator.standard_normal((2, *shape)) * self._noise / np.sqrt(self._size)
            own = correlation * conflict + np.sqrt(1 - correlation**2) * independent
        return np.stack([correlation, conflict, own], axis=1)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with some of the runs only."""
        self._generators = [each for each, kept in zip(self._generators, rows, strict=True) if kept]
        self._drawn = self._drawn[..., rows]


class Adam:
    """Adam's direction for one array of scalars."""

    def __init__(self, like: Array) -> None:
        self._mean = np.zeros_like(like)
        self._square = np.zeros_like(like)
        self._step = 0

    def direction(self, slope: Array) -> Array:
        """What to subtract per unit of learning rate."""
        self._step += 1
        self._mean += (1 - BETA_1) * (slope - self._mean)
        self._square += (1 - BETA_2) * (slope**2 - self._square)
        mean = self._mean / (1 - BETA_1**self._step)
        return mean / (np.sqrt(self._square / (1 - BETA_2**self._step)) + EPSILON)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with some of the runs only."""
        self._mean, self._square = self._mean[..., rows], self._square[..., rows]


class VariedDescent:
    """The state of a block of runs outside the theorems; the same interface as `descent.DiagonalDescent`."""

    def __init__(self, config: ToyConfig, seeds: Sequence[int]) -> None:
        self._config = config
        self._tasks = config.tasks
        self._own = np.arange(1, config.n_features)
        self._projections = projections(config, initial_parameters(config, seeds))
        self._batches = Batches(config, seeds) if config.beyond.batch_size else None
        self._adam = None
        if config.beyond.optimizer == "adam":
            self._adam = Adam(self._projections.matrices), Adam(self._projections.encoding)

    def _by_aggregate(self) -> Array:
        """dJ/dw on the population, or on this step's batches; shape (n_features, n_seeds)."""
        aggregate = summed(self._projections.coefficients(), axis=0)
        if self._batches is None:
            return self._config.curvature[:, None] * (aggregate - self._config.optimum[:, None])
        target, weight = self._tasks.target, self._tasks.weight[:, None]
        conflict_error = aggregate[0] - target[:, :1]  # n_tasks, n_seeds
        own_error = aggregate[1:] - target[np.arange(len(target)), self._own][:, None]
        moments = self._batches.draw()
        by_conflict = conflict_error + moments.correlation * own_error - moments.noise_conflict
        by_own = own_error + moments.correlation * conflict_error - moments.noise_own
        return np.concatenate([summed(weight * by_conflict, axis=0)[None], weight * by_own])

    def advance(self, n_steps: int) -> None:
        """Take `n_steps` steps, in place."""
        eta, shrink = self._config.eta, 1 - self._config.eta * self._config.beyond.weight_decay
        held = self._projections
        for _ in range(n_steps):
            by_matrices, by_encoding = held.gradient(self._by_aggregate())
            if self._adam is not None:
                by_matrices = self._adam[0].direction(by_matrices)
                by_encoding = None if by_encoding is None else self._adam[1].direction(by_encoding)
            held.matrices *= shrink
            held.matrices -= eta * by_matrices
            if by_encoding is not None:
                held.encoding -= eta * by_encoding

    def unmoving(self) -> NDArray[np.bool_]:
        """Nobody: momentum and sampling may move a run that stands still for one step; shape (n_seeds,)."""
        return np.zeros(self._projections.matrices.shape[-1], dtype=np.bool_)

    def coefficients(self) -> Array:
        """c_hj of every run, a copy of shape (n_seeds, n_heads, n_features)."""
        return np.ascontiguousarray(np.moveaxis(self._projections.coefficients(), -1, 0))

    def largest(self) -> Array:
        """Size of the largest scalar of every run, shape (n_seeds,)."""
        return np.abs(self._projections.matrices).reshape(-1, self._projections.matrices.shape[-1]).max(axis=0)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with some of the runs only; `rows` has shape (n_seeds,)."""
        self._projections.keep(rows)
        if self._batches is not None:
            self._batches.keep(rows)
        if self._adam is not None:
            for adam in self._adam:
                adam.keep(rows)
