"""Training of many toy runs to their end: blocks of seeds, stop rules, and divergence told apart from numbers.

1. Seeds are trained in blocks that fit the processor's cache; a run is bit for bit the same in any block.
2. Every CHECK_EVERY steps each run is looked at. It has *diverged* when its aggregate is not finite or has left every
   reasonable bound: the run stops there, keeps the last coefficients that were in bounds, and is flagged.
3. A run whose next step would change no bit of any scalar leaves the block: nothing can change any more, so that
   leaving is exact. With steps "converged", a run also leaves at the first look, from the checkpoint on, that finds
   every feature within SETTLED_WITHIN of its optimum. The step is never adapted.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cel_core.toy.config import SETTLED_WITHIN, Array, ToyConfig
from cel_core.toy.descent import DiagonalDescent
from cel_core.toy.model import total
from cel_core.toy.variants import VariedDescent

CHECK_EVERY = 64
BLOCK_SEEDS = 1000
DIVERGED_ABOVE = 1000.0
"""An aggregate this many times larger than optimum and start together (plus 1) has diverged."""

Progress = Callable[[float], None]
"""Called with the share done, 0 to 1; it may raise to stop the work."""
Dynamics = DiagonalDescent | VariedDescent
"""The state of a block of runs under some update rule; both have the same methods."""


class Trained(NamedTuple):
    """Where runs ended."""

    coefficients: Array  # n_seeds, n_heads, n_features: at the end, or the last in bounds of a diverged run
    steps: NDArray[np.int64]  # n_seeds: where that state belongs
    diverged: NDArray[np.bool_]  # n_seeds


def start(config: ToyConfig, seeds: Sequence[int]) -> Dynamics:
    """The runs of the given seeds before their first step."""
    return VariedDescent(config, seeds) if config.beyond.changes_update else DiagonalDescent(config, seeds)


def bound(config: ToyConfig, at_start: Array) -> Array:
    """How large an aggregate may become before its run counts as diverged.

    Args:
        config: the model.
        at_start: coefficients before the first step, (n_seeds, n_heads, n_features).

    Returns:
        Shape (n_seeds, 1).
    """
    return DIVERGED_ABOVE * (1 + config.optimum.max() + np.abs(total(at_start)).max(axis=-1, keepdims=True))


def settled(aggregate: Array, config: ToyConfig, within: float = SETTLED_WITHIN) -> NDArray[np.bool_]:
    """Whether every feature's aggregate is within `within` of its optimum.

    Args:
        aggregate: w, shape (..., n_features).
        config: the model.
        within: in coefficient units.

    Returns:
        Shape (...).
    """
    return np.asarray((np.abs(aggregate - config.optimum) < within).all(axis=-1))


def train(config: ToyConfig, seeds: Sequence[int], progress: Progress | None = None) -> Trained:
    """Train every seed to its end.

    Args:
        config: the model; its own seed is not used.
        seeds: one per run.
        progress: told the share of the steps done, at most (runs may end sooner).

    Returns:
        One row per seed, in their order.
    """
    blocks = []
    for first in range(0, len(seeds), BLOCK_SEEDS):
        block = seeds[first : first + BLOCK_SEEDS]

        def report(share: float, first: int = first, size: int = len(block)) -> None:
            if progress is not None:
                progress((first + share * size) / len(seeds))

        blocks.append(_train_block(config, block, report))
    return Trained(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def _train_block(config: ToyConfig, seeds: Sequence[int], report: Progress) -> Trained:
    dynamics = start(config, seeds)
    state = dynamics.coefficients()
    limit = bound(config, state)
    steps = np.zeros(len(seeds), dtype=np.int64)
    diverged = np.zeros(len(seeds), dtype=np.bool_)
    rows = np.arange(len(seeds))  # those still in the block
    first_look = min(-(-config.checkpoint // CHECK_EVERY) * CHECK_EVERY, config.last_step)  # at which "converged" may end
    step = 0
    with np.errstate(over="ignore", invalid="ignore"):
        while step < config.last_step and len(rows):
            n_steps = min(CHECK_EVERY, config.last_step - step)
            dynamics.advance(n_steps)
            step += n_steps
            now = dynamics.coefficients()
            lost = ~(np.abs(total(now)) <= limit[rows]).all(axis=-1)  # not a number counts as lost
            state[rows[~lost]] = now[~lost]
            steps[rows[~lost]] = step
            diverged[rows[lost]] = True
            there = settled(total(now), config) if config.steps == "converged" else np.zeros_like(lost)
            still = dynamics.unmoving() & ~lost
            steps[rows[still]] = np.where(there[still], max(step, first_look), config.last_step)
            left = lost | still | (there if step >= first_look else False)
            if left.any():
                dynamics.keep(~left)
                rows = rows[~left]
            report(step / config.last_step)
    report(1.0)
    return Trained(state, steps, diverged)
