"""The phase map: over two settings, how often a beneficial head exists and how much its removal helps.

The theorems give one corner of this map. Everywhere else it is an experiment: a run counts as having a *beneficial
head* when deleting some single head lowers some task's risk by more than BENEFICIAL_SHARE of t^2 (t = a/2), the gain
that the theorem predicts on E. Every cell trains the same seeds, so that cells differ by their settings and not by
luck.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cel_core.errors import ToyError
from cel_core.toy.config import Array, ToyConfig, require_whole
from cel_core.toy.model import delete_head, risks, total
from cel_core.toy.population import MAX_SEEDS, Population, populate

BENEFICIAL_SHARE = 0.1

MODEL_SETTINGS = ("alpha", "eta", "heads", "a", "b", "c")
BEYOND_SETTINGS = ("init_scale", "label_noise", "weight_decay", "batch_size", "n_tasks")
WEIGHT_SETTING = "weight_a"
"""Task A's share of the objective, 0 to 1; the other tasks share the rest equally."""
PHASE_SETTINGS = (*MODEL_SETTINGS, *BEYOND_SETTINGS, WEIGHT_SETTING)
_WHOLE = ("heads", "batch_size", "n_tasks")


class Axis(NamedTuple):
    """One side of the map."""

    setting: str  # one of PHASE_SETTINGS
    values: tuple[float, ...]


class Beneficial(NamedTuple):
    """The best single deletion of every run, arrays of shape (n_seeds,)."""

    gain: Array  # largest drop of any task's risk by deleting any one head, in risk units; may be negative
    exists: NDArray[np.bool_]  # that gain exceeds BENEFICIAL_SHARE of t^2


@dataclass(frozen=True)
class PhaseCell:
    """One pair of settings; shares are 0-1 over the runs that did not diverge, None where there are none."""

    x: float
    y: float
    n_seeds: int
    pr_beneficial: float | None  # share of runs with a beneficial head
    pr_beneficial_se: float | None  # its standard error
    median_gain: float | None  # over those runs, in risk units
    pr_event: float | None  # share of runs on E
    converged_share: float | None
    diverged_share: float | None  # of all runs
    duration_s: float
    problem: str | None = None  # why the model does not exist here


def best_deletion(population: Population) -> Beneficial:
    """Look, in every run, for the single head and the task that gain most by the head's removal."""
    config, held = population.config, population.coefficients
    before = risks(total(held), config).tasks
    after = np.stack([delete_head(held, head, config).tasks for head in range(config.heads)])
    gain = (before - after).max(axis=(0, 2))  # heads, seeds, tasks -> seeds
    return Beneficial(gain, gain > BENEFICIAL_SHARE * (config.a / 2) ** 2)


def phase_map(config: ToyConfig, x: Axis, y: Axis, n_seeds: int = 200) -> Iterator[PhaseCell]:
    """Train a population in every cell, row by row from the first value of `y`; stop by no longer asking for cells.

    Args:
        config: the model everywhere else, and its step rule. Take `converged` where the model settles: the checkpoint of
            a large alpha comes long before the race is over.
        x: one side of the map.
        y: the other.
        n_seeds: runs per cell.

    Returns:
        One cell after another, len(x.values) * len(y.values) in all. Where settings do not make a model, or have no end
        under the step rule, the cell says so in `problem`.

    Raises:
        ToyError: an axis is unknown, empty or used twice, or the number of seeds is out of range.
    """
    for axis in (x, y):
        if axis.setting not in PHASE_SETTINGS:
            raise ToyError(f"{axis.setting!r} is no setting to map: choose among {', '.join(PHASE_SETTINGS)}")
        if not axis.values:
            raise ToyError(f"0 values of {axis.setting} make no map: give at least one")
    if x.setting == y.setting:
        raise ToyError(f"{x.setting} cannot be both sides of the map: choose another second setting")
    require_whole("seeds", n_seeds, 1, MAX_SEEDS, "a usual cell has 200")
    return (_cell(config, {x.setting: u, y.setting: v}, n_seeds) for v in y.values for u in x.values)


def with_settings(config: ToyConfig, settings: dict[str, float]) -> ToyConfig:
    """The configuration with some PHASE_SETTINGS changed.

    Raises:
        ToyError: together they are no model.
    """
    given = {name: _whole(name, value) if name in _WHOLE else value for name, value in settings.items()}
    beyond_values: dict[str, Any] = {name: value for name, value in given.items() if name in BEYOND_SETTINGS}
    if "n_tasks" in given and len(config.beyond.task_weights) != given["n_tasks"]:
        beyond_values["task_weights"] = ()
    if WEIGHT_SETTING in given:
        n_tasks, share = int(given.get("n_tasks", config.beyond.n_tasks)), given[WEIGHT_SETTING]
        beyond_values["task_weights"] = (share, *[(1 - share) / (n_tasks - 1)] * (n_tasks - 1))
    model_values = {name: value for name, value in given.items() if name in MODEL_SETTINGS}
    return replace(config, **model_values, beyond=replace(config.beyond, **beyond_values))


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise ToyError(f"{name} {value:g} is not a whole number: choose one")
    return int(value)


def _cell(config: ToyConfig, settings: dict[str, float], n_seeds: int) -> PhaseCell:
    began = time.perf_counter()
    u, v = settings.values()
    try:
        population = populate(with_settings(config, settings), n_seeds)
    except ToyError as error:
        return PhaseCell(u, v, n_seeds, None, None, None, None, None, None, time.perf_counter() - began, str(error))
    sound = ~population.diverged
    n_sound = int(sound.sum())
    diverged_share = 1 - n_sound / n_seeds
    if not n_sound:
        return PhaseCell(u, v, n_seeds, None, None, None, None, None, diverged_share, time.perf_counter() - began)
    best = best_deletion(population)
    helped = best.exists & sound
    share = float(helped.sum() / n_sound)
    return PhaseCell(
        u,
        v,
        n_seeds,
        pr_beneficial=share,
        pr_beneficial_se=float(np.sqrt(share * (1 - share) / n_sound)),
        median_gain=float(np.median(best.gain[helped])) if helped.any() else None,
        pr_event=float(population.event.sum() / n_sound),
        converged_share=float(population.converged().sum() / n_sound),
        diverged_share=diverged_share,
        duration_s=time.perf_counter() - began,
    )
