"""Many toy runs side by side: how often E happens, what deleting the conflict head does, how small losers stay.

Seeds are consecutive from the configuration's own, and each run is the one that `trajectory.run` makes of its seed.
All statistics leave diverged runs out and say how many there were. Runs count whether or not they have converged, as in
the theorem's statement at the checkpoint; the converged share says how far they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cel_core.errors import ToyError
from cel_core.toy.config import Array, ToyConfig, require_whole
from cel_core.toy.model import (
    Effects,
    deletion_effects,
    in_event,
    losers,
    predicted_effects,
    predicted_event_probability,
    total,
    winners,
)
from cel_core.toy.training import Progress, settled, train

CONVERGED_WITHIN = 1e-3
"""A run counts as converged, in shares, when every feature is this near its optimum."""
MAX_SEEDS = 1_000_000
ORDER_FACTORS = (1.0, 1.4, 2.0)
"""Multiples of alpha at which the losers' order is fitted: larger ones, since their runs are shorter."""
LARGEST_SCALE = 0.5
"""Beyond it, nothing is small any more that an order could be fitted to."""


@dataclass(frozen=True)
class Spread:
    """Quartiles of one quantity over the runs on E, and what the theorem predicts, in risk units."""

    q1: float
    median: float
    q3: float
    predicted: float


@dataclass(frozen=True)
class PopulationSummary:
    """A population in numbers; plain values all through, for JSON. None where no run is on E."""

    n_seeds: int
    n_diverged: int
    n_event: int
    pr_event: float  # 0-1, of the runs that did not diverge
    pr_event_se: float  # standard error of that share
    pr_event_predicted: float  # ((M-1)/M)^2
    task_a_drop: Spread | None  # R_A before minus after deleting the conflict feature's winner, on E
    task_b_rise: Spread | None
    joint_rise: Spread | None
    converged_share: float  # 0-1, every feature within `converged_within` of its optimum
    converged_within: float
    median_steps: float
    loser_median: float  # over runs and features: summed size of the losing heads' coefficients
    loser_over_alpha4: float
    loser_order: float | None  # fitted exponent of alpha, predicted 4; None where it was not fitted
    winners_table: tuple[tuple[int, ...], ...]  # n_features, n_heads: runs in which the head won the feature
    beyond: tuple[str, ...]  # what is switched on outside the theorems

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "PopulationSummary":
        """The inverse of `dataclasses.asdict`, also after a round trip through JSON."""
        spreads = {name: plain[name] and Spread(**plain[name]) for name in ("task_a_drop", "task_b_rise", "joint_rise")}
        rows = {"winners_table": tuple(map(tuple, plain["winners_table"])), "beyond": tuple(plain["beyond"])}
        return cls(**{**plain, **spreads, **rows})


@dataclass(frozen=True)
class Population:
    """Runs of consecutive seeds at their end; the arrays share their first axis, n_seeds."""

    config: ToyConfig
    coefficients: Array  # n_seeds, n_heads, n_features; of a diverged run the last in bounds
    steps: NDArray[np.int64]  # n_seeds: where each run stood
    diverged: NDArray[np.bool_]  # n_seeds

    @property
    def seeds(self) -> NDArray[np.int64]:
        """Shape (n_seeds,)."""
        return self.config.seed + np.arange(len(self.steps))

    @property
    def winners(self) -> NDArray[np.int64]:
        """Each feature's winning head, shape (n_seeds, n_features)."""
        return winners(self.coefficients)

    @property
    def event(self) -> NDArray[np.bool_]:
        """The runs on E, none of them diverged; shape (n_seeds,)."""
        return in_event(self.winners) & ~self.diverged

    @property
    def effects(self) -> Effects:
        """What deleting the conflict feature's winner does, run by run, shape (n_seeds,)."""
        return deletion_effects(self.coefficients, self.config)

    def converged(self, within: float = CONVERGED_WITHIN) -> NDArray[np.bool_]:
        """Runs with every feature within `within` of its optimum, shape (n_seeds,)."""
        return settled(total(self.coefficients), self.config, within) & ~self.diverged

    def winners_table(self) -> NDArray[np.int64]:
        """How often each head won each feature, shape (n_features, n_heads), diverged runs left out."""
        won = self.winners[~self.diverged][..., None] == np.arange(self.config.heads)
        return won.sum(axis=0)

    def summary(self, loser_order: float | None = None) -> PopulationSummary:
        """The population in numbers.

        Args:
            loser_order: the fitted exponent to include, from `loser_order`.
        """
        sound = ~self.diverged
        n_sound = int(sound.sum())
        share = float(self.event.sum() / n_sound) if n_sound else 0.0
        predicted = predicted_effects(self.config)
        spreads = [_spread(values[self.event], float(by)) for values, by in zip(self.effects, predicted, strict=True)]
        loser_median = float(np.median(losers(self.coefficients[sound]))) if n_sound else 0.0
        return PopulationSummary(
            n_seeds=len(self.steps),
            n_diverged=len(self.steps) - n_sound,
            n_event=int(self.event.sum()),
            pr_event=share,
            pr_event_se=float(np.sqrt(share * (1 - share) / n_sound)) if n_sound else 0.0,
            pr_event_predicted=predicted_event_probability(self.config),
            task_a_drop=spreads[0],
            task_b_rise=spreads[1],
            joint_rise=spreads[2],
            converged_share=float(self.converged().sum() / n_sound) if n_sound else 0.0,
            converged_within=CONVERGED_WITHIN,
            median_steps=float(np.median(self.steps)),
            loser_median=loser_median,
            loser_over_alpha4=loser_median / self.config.alpha**4,
            loser_order=loser_order,
            winners_table=tuple(tuple(map(int, row)) for row in self.winners_table()),
            beyond=self.config.beyond.labels,
        )


def _spread(values: Array, predicted: float) -> Spread | None:
    if not len(values):
        return None
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
    return Spread(float(q1), float(median), float(q3), predicted)


def populate(config: ToyConfig, n_seeds: int, progress: Progress | None = None) -> Population:
    """Train `n_seeds` runs with the seeds `config.seed`, `config.seed` + 1, ...

    Args:
        config: the model and its step rule.
        n_seeds: how many runs.
        progress: told the share done, 0 to 1; it may raise to stop the work.

    Raises:
        ToyError: too few or too many seeds.
    """
    require_whole("seeds", n_seeds, 1, MAX_SEEDS, "a usual population is 4000")
    trained = train(config, range(config.seed, config.seed + n_seeds), progress)
    return Population(config, *trained)


class ScalePoint(NamedTuple):
    """One initialisation scale of the scaling view; medians over its runs, None where no run counts."""

    alpha: float
    n_seeds: int
    loser_median: float | None  # summed size of the losing heads' coefficients, over runs and features
    drop_error: float | None  # |R_A drop - predicted| on E, median, in risk units
    rise_error: float | None  # |R_B rise - predicted| on E, median, in risk units
    converged_share: float  # 0-1


def scaling(config: ToyConfig, alphas: Sequence[float], n_seeds: int, progress: Progress | None = None) -> Iterator[ScalePoint]:
    """Populations at several initialisation scales, all else alike; one point after another, to show and to stop.

    Only runs with every feature near its optimum count, since a feature still in its race has no losers yet.

    Args:
        config: the model and its step rule.
        alphas: the scales.
        n_seeds: runs at each scale.
        progress: told the share of all scales done; it may raise to stop the work.

    Raises:
        ToyError: an alpha is out of range, or its checkpoint out of reach.
    """
    for number, each in enumerate([replace(config, alpha=alpha) for alpha in alphas]):

        def report(share: float, number: int = number) -> None:
            if progress is not None:
                progress((number + share) / len(alphas))

        runs = populate(each, n_seeds, report)
        rows, on_event = runs.converged(), runs.converged() & runs.event
        predicted = predicted_effects(each)
        yield ScalePoint(
            each.alpha,
            n_seeds,
            _median(losers(runs.coefficients[rows])),
            _median(np.abs(runs.effects.task_a_drop - predicted.task_a_drop)[on_event]),
            _median(np.abs(runs.effects.task_b_rise - predicted.task_b_rise)[on_event]),
            float(rows.mean()),
        )


def _median(values: Array) -> float | None:
    return float(np.median(values)) if values.size else None


def order_of(points: Sequence[ScalePoint]) -> float:
    """Slope of the losers' median against alpha, both in logarithms; Theorem 4.2 says 4.

    Raises:
        ToyError: fewer than two scales have converged runs with losers.
    """
    usable = [(point.alpha, point.loser_median) for point in points if point.loser_median]
    if len(usable) < 2:
        raise ToyError(f"{len(usable)} scales with converged runs give no slope: take more steps, or two heads and more")
    alpha, loser = np.log(np.asarray(usable)).T
    return float(np.polyfit(alpha, loser, 1)[0])


def loser_order(config: ToyConfig, n_seeds: int = 400, alphas: Sequence[float] = (), progress: Progress | None = None) -> float:
    """Fit the order of the losing heads in alpha, on runs trained until they converge.

    Args:
        config: the model; its alpha is the smallest scale where `alphas` is not given.
        n_seeds: runs at each scale.
        alphas: the scales; empty for ORDER_FACTORS times the configuration's, as far as they stay below LARGEST_SCALE.
        progress: told the share done; it may raise to stop the work.

    Raises:
        ToyError: no slope can be fitted, or the model never settles.
    """
    scales = alphas or [config.alpha * factor for factor in ORDER_FACTORS if config.alpha * factor < LARGEST_SCALE]
    if len(scales) < 2:
        raise ToyError(f"alpha {config.alpha:g} is too large to fit an order in alpha: choose less, such as 0.1")
    if config.heads == 1:
        raise ToyError("heads 1 leaves no losing head to measure: take two and more")
    return order_of(list(scaling(replace(config, steps="converged"), scales, n_seeds, progress)))
