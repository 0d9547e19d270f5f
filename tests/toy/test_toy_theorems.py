"""Every statement of section 3 holds at the paper's settings, and every check can fail."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import shichi

from cel_core.errors import ToyError
from cel_core.toy import theorems
from cel_core.toy.config import Beyond, ToyConfig
from cel_core.toy.model import Risks
from cel_core.toy.population import Population, populate
from cel_core.toy.theorems import (
    Check,
    all_checks,
    check_convergence,
    check_effects,
    check_event,
    check_independent,
    check_limits,
    check_loser_order,
    check_one_winner,
    check_optimum,
    check_risks,
    check_uniform,
    watch_residuals,
    winner_size,
)

CONFIG = ToyConfig(steps="converged")


@pytest.fixture(scope="module")
def population() -> Population:
    return populate(CONFIG, 2000)


def changed(population: Population, coefficients: np.ndarray) -> Population:
    return replace(population, coefficients=coefficients)


@pytest.mark.parametrize(
    "config",
    [CONFIG, ToyConfig(a=3, b=0.3, c=1.6), ToyConfig(beyond=Beyond(n_tasks=4, task_weights=(1, 2, 3, 4)))],
)
def test_risks_and_optimum_by_monte_carlo(config: ToyConfig):
    assert check_risks(config).holds
    optimum = check_optimum(config)
    assert optimum.holds and 0 < optimum.measured < 0.1


def test_a_wrong_risk_formula_fails_its_check(monkeypatch: pytest.MonkeyPatch):
    true_risks = theorems.risks
    monkeypatch.setattr(
        theorems, "risks", lambda w, config: Risks(true_risks(w, config).tasks * 1.05, true_risks(w, config).joint)
    )
    assert not check_risks(CONFIG).holds


def test_a_wrong_optimum_fails_its_check(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ToyConfig, "optimum", np.array([0.8, 1.0, 1.0]))
    assert not check_optimum(CONFIG).holds


def test_residuals_stay_positive_never_grow_and_scalars_stay_bounded():
    sign, growth, bounded = watch_residuals(CONFIG, 100)
    assert sign.holds and growth.holds and bounded.holds
    assert 1.0 < bounded.measured < 1.3


def test_a_step_too_long_lets_residuals_overshoot_and_the_check_sees_it():
    sign, growth, _ = watch_residuals(ToyConfig(eta=0.8, alpha=0.2, steps=300), 30)
    assert not sign.holds and not growth.holds


@pytest.mark.parametrize("aims", [(2, 1, 1), (8, 0.2, 3)])
def test_winner_size_solves_the_balanced_equations(aims: tuple[float, float, float]):
    config = ToyConfig(a=aims[0], b=aims[1], c=aims[2], eta=0.01)
    sizes = []
    for goal in config.optimum:
        s = brentq(lambda s, goal=goal: shichi(2 * s)[0] / 2 * np.tanh(s) - goal, 1e-6, 12)
        sizes += [np.sqrt(s), np.sqrt(shichi(2 * s)[0] / 2)]
    assert winner_size(config) == pytest.approx(max(sizes), rel=1e-3)


def test_population_statements_hold(population: Population):
    checks = [
        check_convergence(population),
        check_one_winner(population),
        check_uniform(population),
        check_independent(population),
        check_event(population),
        *check_effects(population),
        *check_limits(population),
    ]
    assert [check.name for check in checks if not check.holds] == []
    named = {check.name: check for check in checks}
    assert named["uniform winners"].predicted == 2 and named["independent winners"].predicted == 8
    # From tables: the upper 0.001/3 points of chi-squared with 2 and 8 degrees of freedom.
    assert named["uniform winners"].tolerance == pytest.approx(16.01 - 2, abs=0.01)
    assert named["independent winners"].tolerance == pytest.approx(28.9 - 8, abs=0.1)
    assert named["task A drop"].measured == pytest.approx(1, abs=1e-5)
    assert named["task B rise"].measured == pytest.approx(3, abs=5e-4)
    assert named["joint rise"].measured == pytest.approx(0.5, abs=2e-4)
    assert named["R_A without"].measured < 1e-6
    assert named["R_B without"].measured == pytest.approx(4, abs=5e-4)


def test_effects_deviate_by_the_order_of_alpha_to_the_fourth(population: Population):
    larger = populate(replace(CONFIG, alpha=0.2), 1000)
    errors = [np.median(np.abs(runs.effects.task_b_rise[runs.event] - 3)) for runs in (population, larger)]
    assert np.log2(errors[1] / errors[0]) == pytest.approx(4, abs=0.4)


def test_losers_are_of_order_alpha_to_the_fourth():
    order = check_loser_order(CONFIG, 400, (0.1, 0.14, 0.2))
    assert order.holds and order.measured == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("heads", [2, 3, 4, 6])
def test_event_probability_for_other_numbers_of_heads(heads: int):
    runs = populate(ToyConfig(heads=heads, alpha=0.4, steps="converged", seed=50_000), 4000)
    event = check_event(runs)
    assert event.predicted == pytest.approx(((heads - 1) / heads) ** 2)
    assert event.tolerance < 0.025
    assert event.holds, event
    assert check_uniform(runs).holds and check_independent(runs).holds


def test_a_favoured_head_fails_uniformity(population: Population):
    held = population.coefficients.copy()
    held[:150] = np.sort(held[:150], axis=1)  # the winner of every feature becomes the last head
    assert not check_uniform(changed(population, held)).holds


def test_linked_features_fail_independence_and_the_event(population: Population):
    held = population.coefficients.copy()
    held[:400, :, 1] = held[:400, :, 0]  # V is won by whoever wins U, without favouring a head
    linked = changed(population, held)
    assert check_uniform(linked).holds
    assert not check_independent(linked).holds
    assert not check_event(linked).holds


def test_shared_features_fail_the_one_winner_and_effect_checks(population: Population):
    held = population.coefficients.copy()
    held[:] = 0.8 * held + 0.2 * np.roll(held, 1, axis=1)  # sums unchanged, a fifth handed to the next head
    shared = changed(population, held)
    assert check_convergence(shared).holds
    assert not check_one_winner(shared).holds
    assert not any(check.holds for check in check_effects(shared))


def test_unfinished_runs_fail_convergence(population: Population):
    held = population.coefficients.copy()
    held[:20] *= 0.99
    assert not check_convergence(changed(population, held)).holds


def test_all_statements_hold_with_other_constants():
    checks = list(all_checks(ToyConfig(a=3, b=0.8, c=1.5, alpha=0.2, eta=0.03, heads=4), 600))
    assert len(checks) == 18
    assert [check.name for check in checks if not check.holds] == []
    assert all(check.reason and check.statement for check in checks)


def test_one_head_gives_no_event_to_check():
    with pytest.raises(ToyError, match="none of 20 runs is on E"):
        list(all_checks(ToyConfig(heads=1, alpha=0.4), 20))


def test_a_bound_only_counts_excess():
    bound = Check("", "", measured=1.0, predicted=2.0, tolerance=0.1, reason="", at_most=True)
    assert bound.holds and not replace(bound, measured=2.2).holds
    assert not replace(bound, at_most=False).holds
    assert not replace(bound, measured=float("nan")).holds
