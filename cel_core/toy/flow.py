"""Gradient flow, the small-step limit of descent: d theta / d time = -grad J, integrated by scipy.

A second method, on request only: descent with the fixed step eta is what the theorems are about. Time is eta times the
step, so that both methods share one axis. Only the proven update has a flow here; sampled batches, Adam and the like do
not.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from cel_core.errors import ToyError
from cel_core.toy.config import SETTLED_WITHIN, Array, ToyConfig
from cel_core.toy.model import coefficients, gradient, initial_parameters, total

RELATIVE_TOLERANCE = 1e-9
ABSOLUTE_TOLERANCE = 1e-12
GRID_POINTS = 2000
READS_PER_STEP = 16
"""Readings within each step of the integrator, which takes few."""


class Flow(NamedTuple):
    """A flow read at whole steps of descent."""

    steps: NDArray[np.int64]  # n_read
    coefficients: Array  # n_read, n_heads, n_features


def flow(config: ToyConfig) -> Flow:
    """Follow the flow of the run `config.seed` to the end its step rule gives.

    Raises:
        ToyError: the configuration has no flow, or the integrator gave up.
    """
    if config.beyond.changes_update:
        raise ToyError(f"gradient flow does not cover {', '.join(config.beyond.labels)}: choose descent, or switch it off")
    begin = initial_parameters(config, [config.seed])[0]

    def slope(_: float, scalars: Array) -> Array:
        return -gradient(scalars.reshape(begin.shape), config).ravel()

    def unsettled(time: float, scalars: Array) -> float:
        """Falls below 0 once the checkpoint is past and every feature is settled."""
        far = np.abs(total(coefficients(scalars.reshape(begin.shape))) - config.optimum).max() - SETTLED_WITHIN
        return max(float(far), (config.checkpoint * config.eta - time) * SETTLED_WITHIN)

    unsettled.terminal = True  # type: ignore[attr-defined]  (scipy reads the attribute)
    solution = solve_ivp(
        slope,
        (0.0, config.last_step * config.eta),
        begin.ravel(),
        method="DOP853",
        dense_output=True,
        events=unsettled if config.steps == "converged" else None,
        rtol=RELATIVE_TOLERANCE,
        atol=ABSOLUTE_TOLERANCE,
    )
    if not solution.success or solution.sol is None:
        raise ToyError(f"gradient flow stopped at time {solution.t[-1]:g}: {solution.message}; choose descent")
    last = int(round(solution.t[-1] / config.eta))
    position = np.linspace(0, len(solution.t) - 1, READS_PER_STEP * len(solution.t))
    own = np.rint(np.interp(position, np.arange(len(solution.t)), solution.t) / config.eta)  # dense where it went slowly
    grid = np.concatenate([own, np.rint(np.geomspace(1, max(last, 1), GRID_POINTS)), [0, min(config.checkpoint, last), last]])
    steps = np.unique(grid[grid <= last]).astype(np.int64)
    scalars = solution.sol(steps * config.eta).T.reshape(len(steps), *begin.shape)
    return Flow(steps, coefficients(scalars))
