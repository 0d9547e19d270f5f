"""One run: what is recorded is exact, what is thinned still shows the race, and the flow is the small-step limit."""

from dataclasses import replace

import numpy as np
import pytest

from cel_core.errors import ToyError
from cel_core.toy import trajectory
from cel_core.toy.config import Beyond, ToyConfig
from cel_core.toy.descent import DiagonalDescent
from cel_core.toy.model import delete_head, risks
from cel_core.toy.population import populate
from cel_core.toy.trajectory import MAX_POINTS, run, thin

CONFIG = ToyConfig(alpha=0.2, steps="converged", seed=5)


def test_every_recorded_state_is_the_exact_one_of_its_step():
    shown = run(CONFIG)
    exact, step = DiagonalDescent(CONFIG, [CONFIG.seed]), 0
    for recorded, state in zip(shown.steps, shown.coefficients, strict=True):
        exact.advance(int(recorded) - step)
        step = int(recorded)
        np.testing.assert_array_equal(state, exact.coefficients()[0])


def test_record_fits_a_plot_and_keeps_start_checkpoint_and_end():
    shown = run(replace(CONFIG, alpha=0.1))
    assert 100 < len(shown.steps) <= MAX_POINTS
    assert (np.diff(shown.steps) > 0).all()
    assert shown.steps[0] == 0 and shown.checkpoint in shown.steps
    assert shown.steps[-1] >= shown.config.checkpoint
    assert run(replace(CONFIG, steps=50)).checkpoint is None


@pytest.mark.parametrize("seed", range(4))
def test_transitions_are_resolved_however_short_they_are(seed: int):
    shown = run(replace(CONFIG, alpha=0.07, seed=seed))
    assert np.abs(np.diff(shown.aggregate, axis=0)).max() < 0.03
    assert shown.steps[-1] > 10_000
    flow = run(replace(CONFIG, alpha=0.07, seed=seed), "flow")
    assert np.abs(np.diff(flow.aggregate, axis=0)).max() < 0.06


def test_a_run_that_never_stops_moving_fits_the_plot_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trajectory, "BUFFER_POINTS", 600)
    noisy = ToyConfig(alpha=0.3, steps=3000, beyond=Beyond(batch_size=1))
    shown = run(noisy)
    assert 100 < len(shown.steps) <= MAX_POINTS
    assert shown.steps[0] == 0 and shown.steps[-1] == 3000 and noisy.checkpoint in shown.steps
    exact = populate(noisy, 1)
    np.testing.assert_array_equal(shown.coefficients[-1], exact.coefficients[0])


def test_risks_and_deletions_of_a_trajectory():
    shown = run(CONFIG)
    np.testing.assert_array_equal(shown.risks.tasks, risks(shown.coefficients.sum(axis=1), CONFIG).tasks)
    np.testing.assert_array_equal(shown.risks_without(1).joint[-1], delete_head(shown.coefficients[-1], 1, CONFIG).joint)
    assert shown.converged and not shown.diverged
    conflict, *_ = shown.winners
    assert shown.risks.task_a[-1] == pytest.approx(1, abs=1e-4)
    assert shown.risks_without(int(conflict)).task_b[-1] > 3.9


def test_a_run_that_stands_still_ends_at_the_step_asked_for():
    config = ToyConfig(alpha=0.3, steps=4000)
    standing = next(seed for seed in range(50) if DiagonalDescentAt(replace(config, seed=seed), 1000).unmoving()[0])
    shown = run(replace(config, seed=standing))
    assert shown.steps[-1] == 4000 and len(set(shown.steps.tolist())) == len(shown.steps)
    exact = DiagonalDescentAt(replace(config, seed=standing), 4000)
    np.testing.assert_array_equal(shown.coefficients[-1], exact.coefficients()[0])


def test_a_run_that_stands_still_before_the_checkpoint_shows_the_checkpoint():
    config = ToyConfig(alpha=0.15, steps=3000)
    assert config.checkpoint < 3000
    standing = next(
        seed for seed in range(50) if DiagonalDescentAt(replace(config, seed=seed), config.checkpoint - 64).unmoving()[0]
    )
    shown = run(replace(config, seed=standing))
    assert shown.steps[-2:].tolist() == [config.checkpoint, 3000]
    np.testing.assert_array_equal(shown.coefficients[-2], shown.coefficients[-1])


def DiagonalDescentAt(config: ToyConfig, step: int) -> DiagonalDescent:  # noqa: N802
    dynamics = DiagonalDescent(config, [config.seed])
    dynamics.advance(step)
    return dynamics


@pytest.mark.filterwarnings("error")
def test_divergence_ends_the_record_before_it_and_says_when():
    config = ToyConfig(steps=500, beyond=Beyond(init_scale=60))
    trajectories = [run(replace(config, seed=seed)) for seed in range(6)]
    diverged = [each for each in trajectories if each.diverged]
    assert diverged
    for each in diverged:
        assert np.isfinite(each.coefficients).all() and np.isfinite(each.risks.joint).all()
        assert each.diverged_by is not None and each.steps[-1] < each.diverged_by <= 500
        assert not each.converged


def test_flow_is_the_limit_of_small_steps_with_an_error_of_first_order():
    errors = []
    for eta in (0.04, 0.02, 0.01):
        config = replace(CONFIG, eta=eta, steps=int(12 / eta))  # the same time, amid the race
        descent, flow = run(config), run(config, "flow")
        assert descent.winners.tolist() == flow.winners.tolist()
        errors.append(np.abs(descent.coefficients[-1] - flow.coefficients[-1]).max())
    assert errors[0] > 1e-6
    np.testing.assert_allclose(np.array(errors[:-1]) / errors[1:], 2, rtol=0.15)


def test_flow_converges_and_keeps_the_conserved_differences():
    flow = run(CONFIG, "flow")
    assert flow.method == "flow" and flow.converged and flow.checkpoint in flow.steps
    assert len(flow.steps) <= MAX_POINTS
    residual = flow.config.optimum - flow.aggregate
    assert residual.min() > -1e-7 and np.diff(residual, axis=0).max() < 1e-7


def test_flow_refuses_what_has_none_and_unknown_methods_are_named():
    with pytest.raises(ToyError, match="does not cover Adam"):
        run(replace(CONFIG, beyond=Beyond(optimizer="adam")), "flow")
    with pytest.raises(ToyError, match="'euler' is unknown"):
        run(CONFIG, "euler")  # type: ignore[arg-type]
    with pytest.raises(ToyError, match="heads go from 0 to 2"):
        run(replace(CONFIG, steps=5)).risks_without(3)


def test_thinning_goes_by_the_curve_and_not_by_the_clock():
    steps = np.arange(10_001)  # one jump within some fifty steps
    jump = 1 / (1 + np.exp((8000.0 - steps).clip(-500, 500) / 5))
    kept = thin(steps, jump[:, None, None], 200, (1234, 5678))
    assert len(kept) <= 202 and {0, 1234, 5678, 10_000} <= set(kept.tolist())
    assert np.abs(np.diff(jump[kept])).max() < 0.1
    assert np.diff(kept).max() < 1000
