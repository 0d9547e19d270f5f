"""What the toy page computes, at once or as a job: one run, a population, the scaling in alpha, the phase map.

Runs and populations' figures go to the store; the scaling's exponent joins the population's figures there. The scaling's points
and the map's cells are remembered by the desk until the dashboard ends.
"""

import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from cel_core.errors import ToyError
from cel_core.store import Store
from cel_core.toy import (
    Axis,
    PhaseCell,
    PopulationSummary,
    ScalePoint,
    ToyConfig,
    Trajectory,
    order_of,
    run,
)
from cel_core.toy.phase import with_settings
from pages import formats
from pages.toy_jobs import DESK, Job
from pages.toy_question import Question, cost_s

AT_ONCE_S = 1.5
LONGEST_RUN_S = 90.0  # a single run cannot be stopped
LONGEST_LOOK_S = 12.0  # a population that a visit begins by itself
SCALE_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
LARGEST_SCALE = 0.5
SCALE_SEEDS = 400
RUNS_KEPT = 16


_runs: OrderedDict[tuple[str, ...], Trajectory] = (
    OrderedDict()
)  # the last ones shown: a view of them needs no look at the store


def run_key(asked: Question) -> tuple[str, ...]:
    """Names the run shown."""
    return "run", asked.config.key(asked.method)


def population_key(asked: Question) -> tuple[str, ...]:
    """Names the population shown."""
    return "population", asked.population.key(asked.n_seeds)


def scaling_key(asked: Question) -> tuple[str, ...]:
    """Names the scaling shown."""
    return "scaling", asked.settled.key()


def map_key(asked: Question) -> tuple[str, ...]:
    """Names the phase map shown."""
    return "map", asked.mapped.key(asked.n_cell_seeds), repr(asked.x), repr(asked.y)


KEYS = {"run": run_key, "population": population_key, "scaling": scaling_key, "map": map_key}


def job_of(kind: str, asked: Question) -> Job | None:
    """The job of that kind for this question, running or remembered."""
    return DESK.get(*KEYS[kind](asked))


def stop(kind: str, asked: Question) -> None:
    """Ask the job of that kind to stop; what it has computed stays."""
    DESK.stop(*KEYS[kind](asked))


def trajectory(store: Store, asked: Question) -> Trajectory | None:
    """The run: from the store, computed at once where that is quick, or None while a job computes it.

    Raises:
        ToyError: the run would take too long, or its job failed.
    """
    known = _runs.get(run_key(asked)) or store.toy_run(asked.config, asked.method)
    if known is not None:
        return _remember(asked, known)
    job = job_of("run", asked)
    if job is not None and job.rows:
        return _remember(asked, job.rows[0])
    if job is not None and job.problem:
        raise ToyError(job.problem)
    needed = cost_s(asked.config)
    if needed <= AT_ONCE_S or asked.method == "flow":
        found = run(asked.config, asked.method)
        store.save_toy_run(found)
        return _remember(asked, found)
    if needed > LONGEST_RUN_S:
        raise ToyError(
            f"{formats.count(asked.config.last_step)} steps take about {formats.duration(needed)}: raise alpha or eta, give a "
            "number of steps, or choose gradient flow as the method"
        )

    def work(job: Job) -> None:
        job.compute("run", asked.config, asked.method)
        store.save_toy_run(job.rows[0])

    DESK.start(work, *run_key(asked))
    return None


def _remember(asked: Question, found: Trajectory) -> Trajectory:
    _runs[run_key(asked)] = found
    while len(_runs) > RUNS_KEPT:
        _runs.pop(next(iter(_runs)), None)
    return found


def summary(store: Store, asked: Question) -> PopulationSummary | None:
    """The population's figures, where they are known."""
    return store.toy_summary(asked.population, asked.n_seeds)


def begin_population(store: Store, asked: Question) -> None:
    """Train the population as a job."""

    def work(job: Job) -> None:
        before = summary(store, asked)
        job.compute("population", asked.population, asked.n_seeds)
        found = replace(job.rows[0], loser_order=_order(asked) or (before.loser_order if before else None))
        if found.n_diverged == found.n_seeds:
            raise ToyError(f"eta {asked.config.eta:g} makes every one of {found.n_seeds:,} runs diverge: choose less")
        store.save_toy_summary(asked.population, found)

    DESK.start(work, *population_key(asked))


def scales(asked: Question) -> list[float]:
    """The initialisation scales of the scaling view, around the one chosen."""
    return [round(asked.config.alpha * by, 6) for by in SCALE_FACTORS if asked.config.alpha * by <= LARGEST_SCALE]


def begin_scaling(store: Store, asked: Question) -> None:
    """Train populations at several scales as a job, point by point; the fitted exponent joins the population's figures."""

    def work(job: Job) -> None:
        if len(scales(asked)) < 2:
            raise ToyError(f"alpha {asked.config.alpha:g} is too large to fit an order in alpha: choose less, such as 0.1")
        job.compute("scaling", asked.settled, sorted(scales(asked), reverse=True), SCALE_SEEDS)  # the quick ones first
        known = summary(store, asked)
        if known is not None:
            store.save_toy_summary(asked.population, replace(known, loser_order=_slope(job.rows)))

    DESK.start(work, *scaling_key(asked))


def begin_map(asked: Question) -> None:
    """Compute the phase map as a job, cell by cell."""
    costs = _cell_costs_s(asked.mapped, asked.x, asked.y, asked.n_cell_seeds)

    def work(job: Job) -> None:
        job.compute("map", asked.mapped, asked.x, asked.y, asked.n_cell_seeds, costs)

    DESK.start(work, *map_key(asked))


def points(asked: Question) -> list[ScalePoint]:
    """The scaling's points so far, smallest scale first."""
    job = job_of("scaling", asked)
    return sorted(job.rows) if job else []


def cells(asked: Question) -> list[PhaseCell]:
    """The map's cells so far."""
    job = job_of("map", asked)
    return list(job.rows) if job else []


def expected_s(kind: str, asked: Question) -> float:
    """Roughly how long a job takes, in seconds."""
    if kind == "population":
        return cost_s(asked.population, asked.n_seeds)
    if kind == "scaling":
        return sum(cost_s(replace(asked.settled, alpha=alpha), SCALE_SEEDS) for alpha in scales(asked))
    return sum(_cell_costs_s(asked.mapped, asked.x, asked.y, asked.n_cell_seeds))


@functools.lru_cache(maxsize=64)
def _cell_costs_s(config: ToyConfig, x: Axis, y: Axis, n_seeds: int) -> tuple[float, ...]:
    def cost(u: float, v: float) -> float:
        try:
            return cost_s(with_settings(config, {x.setting: u, y.setting: v}), n_seeds) + 0.01
        except ToyError:
            return 0.001  # the cell will say why

    return tuple(cost(u, v) for v in y.values for u in x.values)


def _order(asked: Question) -> float | None:
    job = job_of("scaling", asked)
    return _slope(job.rows) if job and job.done else None


def _slope(found: Sequence[ScalePoint]) -> float | None:
    """The losers' exponent, or None where the points give none."""
    usable = [point for point in found if point.loser_median]
    return order_of(usable) if len(usable) > 1 else None
