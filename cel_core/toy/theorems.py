"""Every statement of the toy theory as a numerical check: measured, predicted, tolerance, and why that tolerance.

1. Proposition 4.1: the risks are sums of squared coordinate errors, the optimum is (a/2, b, c).
2. Theorem 4.2 and lemmas B.3 to B.5: runs stay bounded and converge, residuals are positive and never grow; each
   feature has one winner, uniform over heads and independent of the other features' winners; losers are of order
   alpha^4.
3. Theorem 4.3: Pr(E) = ((M-1)/M)^2; on E, deleting the conflict feature's winner lowers R_A by t^2 and raises R_B by 3
   t^2 and J by t^2 / 2, each up to O(alpha^4); the limits are R_A: t^2 to 0 and R_B: t^2 to 4 t^2.

A check is evidence at finite alpha, eta and number of runs, not a proof. Checks of a population leave diverged runs
out; the statements about limits want one trained with steps "converged". All hold for the proven model; with `Beyond`
switches they measure how far a variant departs from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy.special import chdtri

from cel_core.errors import ToyError
from cel_core.toy.config import Array, ToyConfig
from cel_core.toy.model import (
    delete_head,
    predicted_effects,
    predicted_event_probability,
    risks,
    total,
    winners,
)
from cel_core.toy.population import CONVERGED_WITHIN, Population, loser_order, populate
from cel_core.toy.training import start

CHI_SQUARED_LEVEL = 1e-3
"""Chance, over all tests of one check together, that a true statement fails."""
RISK_SIGMAS = 5.0
ROUNDING = 1e-13
"""Of a sum of some coefficients of size about 1 in float64, with room to spare; scaled by the optimum."""
LOSERS_EACH = 2.0
"""Tolerance, in alpha^4, for what one losing head holds of a feature; measured medians: 0.3 with 3 heads, 2 with 16."""
EVENT_SIGMAS = 3.0


@dataclass(frozen=True)
class Check:
    """One statement, measured."""

    name: str
    statement: str
    measured: float
    predicted: float
    tolerance: float
    reason: str  # why this tolerance
    at_most: bool = False  # the prediction is an upper bound: only an excess counts against it

    @property
    def holds(self) -> bool:
        """Whether the measured value agrees with the prediction within the tolerance."""
        excess = self.measured - self.predicted
        return bool((excess if self.at_most else abs(excess)) <= self.tolerance)


def sampled_examples(config: ToyConfig, n_samples: int, seed: int = 0) -> tuple[Array, Array]:
    """Draw U, V, W and build the tasks' inputs and targets.

    Returns:
        Inputs (n_tasks, n_samples, n_features), and targets (n_tasks, n_samples).
    """
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (n_samples, config.n_features))
    visible, target, _ = config.tasks
    return signs * visible[:, None], target @ signs.T


def check_risks(config: ToyConfig, n_samples: int = 20_000) -> Check:
    """Risks against the mean squared error on sampled U, V, W, at aggregates drawn at random."""
    inputs, targets = sampled_examples(config, n_samples)
    worst = 0.0
    for aggregate in np.random.default_rng(1).normal(0, 1 + config.optimum.max(), (20, config.n_features)):
        squared = (inputs @ aggregate - targets) ** 2  # n_tasks, n_samples
        error = squared.mean(axis=1) - risks(aggregate, config).tasks
        worst = max(worst, float((np.abs(error) / (squared.std(axis=1) / np.sqrt(n_samples) + ROUNDING)).max()))
    return Check(
        "risks",
        "Each risk is the sum of the squared errors of its coordinates",
        worst,
        0.0,
        RISK_SIGMAS,
        f"largest of {20 * len(targets)} errors in standard errors of the mean over {n_samples:,} samples",
        at_most=True,
    )


def check_optimum(config: ToyConfig, n_samples: int = 20_000) -> Check:
    """Least squares on sampled U, V, W of all tasks together, against the optimum."""
    inputs, targets = sampled_examples(config, n_samples)
    scale = np.sqrt(config.tasks.weight)[:, None]
    rows = (inputs * scale[..., None]).reshape(-1, config.n_features)
    fitted = np.linalg.lstsq(rows, (targets * scale).ravel())[0]
    tolerance = RISK_SIGMAS * float(np.linalg.norm([config.a, config.b, config.c])) / np.sqrt(n_samples)
    return Check(
        "optimum",
        "J is least at (a/2, b, c)",
        float(np.abs(fitted - config.optimum).max()),
        0.0,
        tolerance,
        f"least squares on {n_samples:,} samples; the tasks' disagreement acts as noise of at most |(a, b, c)|",
        at_most=True,
    )


def watch_residuals(config: ToyConfig, n_seeds: int = 100) -> tuple[Check, Check, Check]:
    """Residuals and scalars at every single step of some runs: positive, never growing, bounded."""
    dynamics = start(config, range(config.seed, config.seed + n_seeds))
    residual = config.optimum - total(dynamics.coefficients())
    largest, growth, least = dynamics.largest().max(), -np.inf, residual.min()
    for _ in range(config.checkpoint if config.steps == "converged" else config.last_step):
        dynamics.advance(1)
        before, residual = residual, config.optimum - total(dynamics.coefficients())
        growth = max(growth, (residual - before).max())
        least = min(least, residual.min())
        largest = max(largest, dynamics.largest().max())
    rounding = ROUNDING * float(config.optimum.max())
    reason = "rounding, which is all that is left of a converged run's residual"
    return (
        Check("residual sign", "Residuals stay positive", float(-least), 0.0, rounding, reason, at_most=True),
        Check("residual growth", "Residuals never grow", float(growth), 0.0, rounding, reason, at_most=True),
        Check(
            "bounded",
            "Every scalar stays bounded",
            float(largest),
            float(np.hypot(winner_size(config), 6 * config.alpha * config.beyond.init_scale)),
            config.eta,
            "o^2 - v^2 and q^2 - k^2 are kept up to O(eta), so a scalar's square exceeds the balanced winner's by no "
            "more than its start's, at most 6 alpha in samples of this size",
            at_most=True,
        ),
    )


def winner_size(config: ToyConfig) -> float:
    """Largest scalar of a winner that starts from zero, balanced: o = v, q = k.

    Along the flow d(o^2)/d(q^2) = sinh(2 q^2) / (2 q^2), so o^2 is the integral of that from 0 to s = q^2, and the
    winner stops where o^2 tanh(s) is the optimum.
    """
    s = np.linspace(1e-6, 12, 200_001)
    slope = np.sinh(2 * s) / (2 * s)
    gate = s[0] + np.concatenate([[0.0], np.cumsum((slope[1:] + slope[:-1]) / 2 * np.diff(s))])
    stops = np.searchsorted(gate * np.tanh(s), config.optimum)
    return float(np.sqrt(np.maximum(s, gate)[np.minimum(stops, len(s) - 1)].max()))


def check_convergence(population: Population) -> Check:
    """The share of runs at the optimum."""
    share = float(population.converged()[~population.diverged].mean())
    return Check(
        "convergence",
        "Runs converge to (a/2, b, c)",
        share,
        1.0,
        0.002,
        "almost every start converges; the slowest few of a thousand need longer than any cap",
    )


def check_one_winner(population: Population) -> Check:
    """The share of (run, feature) pairs in which one head holds more than nine tenths, among converged runs."""
    rows = population.converged()
    held = population.coefficients[rows]
    share = np.abs(held).max(axis=1) / np.abs(held).sum(axis=1)
    return Check(
        "one winner",
        "Each feature ends in one head",
        float((share > 0.9).mean()),
        1.0,
        3 * population.config.alpha**2,
        "two heads share a feature when their escape times nearly coincide: 1.4 alpha^2 of cases with three heads",
    )


def check_uniform(population: Population) -> Check:
    """Chi-squared of each feature's winners against equal shares; the largest over features."""
    counts = population.winners_table()
    expected = counts.sum(axis=1, keepdims=True) / population.config.heads
    statistic = ((counts - expected) ** 2 / expected).sum(axis=1).max()
    return _chi_squared(
        "uniform winners",
        "Every head is as likely to win a feature",
        float(statistic),
        degrees=population.config.heads - 1,
        n_tests=len(counts),
    )


def check_independent(population: Population) -> Check:
    """Chi-squared of two features' winners against M^2 equally likely pairs; the largest over pairs of features."""
    heads = population.config.heads
    winning = population.winners[~population.diverged]
    statistics = []
    for first, second in combinations(range(winning.shape[1]), 2):
        counts = np.bincount(winning[:, first] * heads + winning[:, second], minlength=heads**2)
        expected = len(winning) / heads**2
        statistics.append(((counts - expected) ** 2 / expected).sum())
    return _chi_squared(
        "independent winners",
        "The winners of different features are independent",
        float(max(statistics)),
        degrees=heads**2 - 1,
        n_tests=len(statistics),
    )


def _chi_squared(name: str, statement: str, statistic: float, degrees: int, n_tests: int) -> Check:
    critical = float(chdtri(degrees, CHI_SQUARED_LEVEL / n_tests)) if degrees else 0.0
    reason = f"chi-squared with {degrees} degrees of freedom, level {CHI_SQUARED_LEVEL:g} over {n_tests} tests together"
    return Check(name, statement, statistic, float(degrees), critical - degrees, reason, at_most=True)


def check_loser_order(config: ToyConfig, n_seeds: int = 400, alphas: Sequence[float] = ()) -> Check:
    """Slope of the losers' median against alpha, both in logarithms."""
    return Check(
        "loser order",
        "The other heads stay of order alpha^4",
        loser_order(config, n_seeds, alphas),
        4.0,
        0.2,
        "terms of the next order at finite alpha, and the sampling error of the medians",
    )


def check_event(population: Population) -> Check:
    """How often E happens."""
    sound = ~population.diverged
    predicted = predicted_event_probability(population.config)
    return Check(
        "Pr(E)",
        "The conflict feature's winner wins no task-specific feature with probability ((M-1)/M)^2",
        float(population.event[sound].mean()),
        predicted,
        EVENT_SIGMAS * float(np.sqrt(predicted * (1 - predicted) / sound.sum())),
        f"{EVENT_SIGMAS:g} standard errors over {int(sound.sum()):,} runs",
    )


def _loser_tolerance(config: ToyConfig) -> float:
    return LOSERS_EACH * (config.heads - 1) * config.alpha**4 * 2 * config.a


def check_effects(population: Population) -> tuple[Check, Check, Check]:
    """On E, the median change of R_A, R_B and J by deleting the conflict feature's winner."""
    config = population.config
    predicted = predicted_effects(config)
    measured = [float(np.median(values[population.event])) for values in population.effects]
    tolerance = _loser_tolerance(config)
    reason = (
        f"losers enter R_B after the deletion times 2a: {LOSERS_EACH:g} alpha^4 for each of M - 1 heads, times 2a; "
        "medians, because the constant depends on the start"
    )
    words = ("R_A drops by t^2", "R_B rises by 3 t^2", "J rises by t^2 / 2")
    drop, rise, joint = (
        Check(name, f"On E, without that head {word}", value, float(by), tolerance, reason)
        for name, word, value, by in zip(("task A drop", "task B rise", "joint rise"), words, measured, predicted, strict=True)
    )
    return drop, rise, joint


def check_limits(population: Population) -> tuple[Check, ...]:
    """On E, the median risks themselves before and after the deletion: t^2 to 0 for A, t^2 to 4 t^2 for B."""
    config = population.config
    rows = population.event & population.converged()
    held = population.coefficients[rows]
    before, after = risks(total(held), config), delete_head(held, winners(held)[:, 0], config)
    whole = risks(config.optimum, config)
    without = risks(config.optimum * (np.arange(config.n_features) > 0), config)
    tolerance = _loser_tolerance(config) + CONVERGED_WITHIN * 2 * config.a
    reason = f"losers of O(alpha^4) and residuals up to {CONVERGED_WITHIN:g}, both times 2a"
    return tuple(
        Check(name, f"On E, {words}", float(np.median(values)), float(limit), tolerance, reason)
        for name, words, values, limit in (
            ("R_A intact", "R_A tends to t^2 with all heads", before.task_a, whole.task_a),
            ("R_A without", "R_A tends to 0 without the head", after.task_a, without.task_a),
            ("R_B intact", "R_B tends to t^2 with all heads", before.task_b, whole.task_b),
            ("R_B without", "R_B tends to 4 t^2 without the head", after.task_b, without.task_b),
        )
    )


def all_checks(config: ToyConfig, n_seeds: int = 2000) -> Iterator[Check]:
    """Every statement, one after another, to show as they come; about ten seconds at the defaults.

    Populations are trained with steps "converged", whatever the configuration's own rule.

    Raises:
        ToyError: the configuration never settles, or its runs all diverge.
    """
    config = replace(config, steps="converged")
    yield check_risks(config)
    yield check_optimum(config)
    yield from watch_residuals(config)
    population = populate(config, n_seeds)
    if not (population.event & population.converged()).any():
        raise ToyError(f"none of {n_seeds} runs is on E and converged: take more heads or seeds, or a smaller eta")
    yield check_convergence(population)
    yield check_one_winner(population)
    yield check_uniform(population)
    yield check_independent(population)
    yield check_event(population)
    yield from check_effects(population)
    yield from check_limits(population)
    yield check_loser_order(config)
