"""One toy run, recorded for a plot: the race between the heads, the risks, the checkpoint, the winners.

1. Every step is taken with the fixed step eta; only the *recording* adapts. A state is kept on a geometric grid of
   steps, and besides whenever the aggregate has moved by MOVE_SHARE of its optimum since the last one kept (looked at
   every LOOK_EVERY steps; every step at first, and while it moves).
2. The record is thinned to what a plot can show: points at equal distances along the curves, measured in steps, in
   the logarithm of steps, and in the coefficients' values and logarithms. Start, checkpoint and end always stay.
3. A run that diverges is recorded up to its last state in bounds and flagged.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cel_core.errors import ToyError
from cel_core.toy.config import Array, ToyConfig
from cel_core.toy.flow import flow
from cel_core.toy.model import Risks, delete_head, risks, total, winners
from cel_core.toy.training import CHECK_EVERY, bound, settled, start

Method = Literal["descent", "flow"]

LOOK_EVERY = 4  # steps
DENSE_UNTIL = 16  # steps
GRID_RATIO = 1.01
MOVE_SHARE = 0.005
MAX_POINTS = 400
BUFFER_POINTS = 20_000
SMALLEST_SHOWN = 1e-8
"""Coefficients below this count as this in the logarithmic distance: no plot goes further down."""


@dataclass(frozen=True)
class Trajectory:
    """One run as recorded; the arrays share their first axis, n_recorded (at most MAX_POINTS)."""

    config: ToyConfig
    method: Method
    steps: NDArray[np.int64]  # n_recorded
    coefficients: Array  # n_recorded, n_heads, n_features
    converged: bool  # every feature within SETTLED_WITHIN of its optimum at the end
    diverged_by: int | None  # step at which the run was found to have left every bound

    @property
    def diverged(self) -> bool:
        """Whether the run left every bound; the record then ends before that."""
        return self.diverged_by is not None

    @property
    def aggregate(self) -> Array:
        """w, shape (n_recorded, n_features)."""
        return total(self.coefficients)

    @property
    def risks(self) -> Risks:
        """Risks of shapes (n_recorded, n_tasks) and (n_recorded,)."""
        return risks(self.aggregate, self.config)

    def risks_without(self, head: int) -> Risks:
        """The risks with one head deleted in every recorded state.

        Raises:
            ToyError: the model has no such head.
        """
        return delete_head(self.coefficients, head, self.config)

    @property
    def winners(self) -> NDArray[np.int64]:
        """Each feature's winning head at the end, shape (n_features,)."""
        return winners(self.coefficients[-1])

    @property
    def checkpoint(self) -> int | None:
        """N_alpha where the run reached it (it is then among `steps`)."""
        return self.config.checkpoint if self.config.checkpoint <= self.steps[-1] else None


class _Record:
    """States kept so far; thinned in place when a run moves so much that it would grow without bound."""

    def __init__(self, first: Array) -> None:
        self.steps = [0]
        self.states = [first]

    def add(self, step: int, state: Array, checkpoint: int) -> None:
        self.steps.append(step)
        self.states.append(state)
        if len(self.steps) > BUFFER_POINTS:
            kept = thin(np.asarray(self.steps), np.asarray(self.states), BUFFER_POINTS // 4, (checkpoint,))
            self.steps = [self.steps[index] for index in kept]
            self.states = [self.states[index] for index in kept]


def run(config: ToyConfig, method: Method = "descent") -> Trajectory:
    """Train the run `config.seed`, recording as it goes.

    Args:
        config: the model, its step rule and seed.
        method: `descent` with the fixed step eta (the theorems' method), or `flow`, its small-step limit.

    Returns:
        The trajectory, thinned to at most MAX_POINTS points; the end of a run that diverged is its last state in
        bounds.

    Raises:
        ToyError: the method is unknown or does not cover the configuration.
    """
    if method == "flow":
        return _trajectory(config, method, *flow(config), diverged_by=None)
    if method != "descent":
        raise ToyError(f"method {method!r} is unknown: choose descent or flow")
    record, diverged_by = _descend(config)
    return _trajectory(config, method, np.asarray(record.steps), np.asarray(record.states), diverged_by)


def _descend(config: ToyConfig) -> tuple[_Record, int | None]:
    dynamics = start(config, [config.seed])
    state = dynamics.coefficients()
    limit, moved = bound(config, state)[0], MOVE_SHARE * config.optimum.max()
    record, recorded = _Record(state[0]), total(state[0])
    step, next_on_grid, moving, checkpoint, last = 0, 1, False, config.checkpoint, config.last_step
    with np.errstate(over="ignore", invalid="ignore"):
        while step < last:
            stop = step + 1 if moving or step < DENSE_UNTIL else step + LOOK_EVERY - step % LOOK_EVERY
            stop = min(stop, last, checkpoint if step < checkpoint else last)
            dynamics.advance(stop - step)
            step = stop
            state = dynamics.coefficients()[0]
            aggregate = total(state)
            if not (np.abs(aggregate) <= limit).all():
                return record, step
            moving = bool(np.abs(aggregate - recorded).max() > moved)
            looked = step % CHECK_EVERY == 0
            over = looked and config.steps == "converged" and step >= checkpoint and bool(settled(aggregate, config))
            if looked and step < last and config.steps != "converged" and dynamics.unmoving()[0]:
                record.add(step, state, checkpoint)
                if step < checkpoint < last:
                    record.add(checkpoint, state, checkpoint)
                step, over = last, True  # nothing changes any more: the end is this state
            if over or moving or step >= next_on_grid or step in (checkpoint, last):
                record.add(step, state, checkpoint)
                recorded, next_on_grid = aggregate, int(step * GRID_RATIO) + 1
            if over:
                break
    return record, None


def _trajectory(
    config: ToyConfig, method: Method, steps: NDArray[np.int64], states: Array, diverged_by: int | None
) -> Trajectory:
    kept = thin(steps, states, MAX_POINTS, (config.checkpoint,))
    converged = diverged_by is None and bool(settled(total(states[-1]), config))
    return Trajectory(config, method, steps[kept], states[kept], converged, diverged_by)


def thin(steps: NDArray[np.int64], states: Array, n_points: int, always: tuple[int, ...] = ()) -> NDArray[np.int64]:
    """Choose points at about equal distances along the curves, as a plot shows them.

    Args:
        steps: ascending, (n_recorded,).
        states: coefficients, (n_recorded, n_heads, n_features).
        n_points: how many to keep at most.
        always: steps to keep wherever they occur, besides the first and the last.

    Returns:
        Indices to keep, ascending.
    """
    if len(steps) <= n_points:
        return np.arange(len(steps))
    flat = states.reshape(len(states), -1)
    curves = (
        steps[:, None].astype(np.float64),
        np.log1p(steps[:, None]),
        flat,
        total(states),
        total(states),  # the steep parts of a plot: they count twice
        np.log(np.maximum(np.abs(flat), SMALLEST_SHOWN)),
    )
    moves = [np.abs(np.diff(curve, axis=0)).sum(axis=1) for curve in curves]
    along = np.concatenate([[0.0], np.cumsum(sum(move / max(move.sum(), 1e-300) for move in moves))])
    fixed = np.flatnonzero(np.isin(steps, always))
    spread = np.searchsorted(along, np.linspace(0, along[-1], n_points - len(fixed)))
    return np.unique(np.concatenate([[0], np.minimum(spread, len(steps) - 1), fixed, [len(steps) - 1]]))
