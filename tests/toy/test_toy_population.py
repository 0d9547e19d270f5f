"""Populations: the figures of the independent simulation, exactness, determinism, divergence."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import pytest

from cel_core.errors import ToyError
from cel_core.toy import training
from cel_core.toy.config import Beyond, ToyConfig
from cel_core.toy.descent import DiagonalDescent
from cel_core.toy.model import total
from cel_core.toy.population import Population, PopulationSummary, loser_order, order_of, populate, scaling
from cel_core.toy.training import Trained, train
from cel_core.toy.trajectory import run

SHORT = ToyConfig(alpha=0.3, steps=600)
EXPLODING = ToyConfig(steps=500, beyond=Beyond(init_scale=60))


def test_independent_figures_at_alpha_a_tenth():
    summary = populate(ToyConfig(a=2, b=1, c=1, alpha=0.1, eta=0.05), 4000).summary()
    assert summary.median_steps == 4606
    assert summary.pr_event == pytest.approx(4 / 9, abs=0.025)
    assert summary.pr_event_predicted == pytest.approx(4 / 9)
    assert summary.pr_event_se == pytest.approx(0.0079, abs=0.0002)
    assert summary.task_a_drop is not None and summary.task_b_rise is not None and summary.joint_rise is not None
    assert summary.task_a_drop.median == pytest.approx(1.0, abs=0.0002)
    assert summary.task_b_rise.median == pytest.approx(2.9998, abs=0.0002)
    assert summary.joint_rise.median == pytest.approx(0.5, abs=0.0002)
    assert (summary.task_a_drop.predicted, summary.task_b_rise.predicted, summary.joint_rise.predicted) == (1, 3, 0.5)
    assert summary.converged_share == pytest.approx(0.57, abs=0.025)
    assert 0.40 < summary.loser_over_alpha4 < 0.50
    assert np.sum(summary.winners_table) == 3 * 4000
    assert summary.n_diverged == 0 and summary.beyond == ()


def test_independent_figures_at_alpha_a_twentieth():
    summary = populate(ToyConfig(alpha=0.05), 400).summary()
    assert summary.median_steps == 23_966
    assert summary.pr_event == pytest.approx(4 / 9, abs=3 * 0.025)
    assert summary.task_a_drop is not None and summary.task_b_rise is not None
    assert summary.task_a_drop.median == pytest.approx(1.0, abs=1e-6)
    assert summary.task_b_rise.median == pytest.approx(3.0, abs=1e-4)


def test_a_run_is_bit_for_bit_the_same_alone_in_a_crowd_and_in_blocks(monkeypatch: pytest.MonkeyPatch):
    crowd = populate(SHORT, 50)
    monkeypatch.setattr(training, "BLOCK_SEEDS", 7)
    np.testing.assert_array_equal(populate(SHORT, 50).coefficients, crowd.coefficients)
    for seed in (0, 6, 7, 49):
        alone = populate(replace(SHORT, seed=seed), 1)
        np.testing.assert_array_equal(alone.coefficients[0], crowd.coefficients[seed])
        np.testing.assert_array_equal(run(replace(SHORT, seed=seed)).coefficients[-1], crowd.coefficients[seed])


def test_leaving_the_block_early_changes_no_bit():
    config, seeds = replace(SHORT, steps=2500), range(60)
    plain = DiagonalDescent(config, seeds)
    plain.advance(1250)
    assert 5 < plain.unmoving().sum() < 60, "some runs must stand still and some must move for this to test anything"
    plain.advance(1250)
    trained = train(config, seeds)
    np.testing.assert_array_equal(trained.coefficients, plain.coefficients())
    assert (trained.steps == 2500).all()


def test_a_converged_run_stops_at_its_own_step_from_the_checkpoint_on():
    config = replace(SHORT, steps="converged")
    runs = populate(config, 80)
    assert runs.converged(1e-6).all()
    assert runs.steps.min() >= config.checkpoint
    assert len(set(runs.steps.tolist())) > 5
    late = int(runs.steps.argmax())
    sooner = populate(replace(config, seed=late, steps=int(runs.steps[late]) - training.CHECK_EVERY), 1)
    assert not sooner.converged(1e-6).any(), "it must not have settled one look earlier"
    single = run(replace(config, seed=late))
    assert single.steps[-1] == runs.steps[late]
    np.testing.assert_array_equal(single.coefficients[-1], runs.coefficients[late])


def test_a_run_that_settles_before_the_checkpoint_goes_on_to_it():
    config = ToyConfig(alpha=0.12, steps="converged")
    earlier = populate(replace(config, steps=int(0.9 * config.checkpoint)), 40)
    assert earlier.converged(1e-6).any()
    runs = populate(config, 40)
    assert (runs.steps[earlier.converged(1e-6)] >= config.checkpoint).all()


@pytest.mark.filterwarnings("error")
def test_divergence_is_flagged_kept_finite_and_left_out_of_the_statistics():
    runs = populate(EXPLODING, 100)
    assert 5 < runs.diverged.sum() <= 100
    assert np.isfinite(runs.coefficients).all()
    summary = runs.summary()
    assert summary.n_diverged == runs.diverged.sum()
    assert np.sum(summary.winners_table) == 3 * (100 - summary.n_diverged)
    assert not (runs.event & runs.diverged).any()
    assert "NaN" not in json.dumps(asdict(summary))


@pytest.mark.filterwarnings("error")
def test_a_wholly_diverged_population_is_reported_as_such():
    summary = populate(replace(EXPLODING, beyond=Beyond(init_scale=100), eta=20), 20).summary()
    assert summary.n_diverged == 20
    assert (summary.n_event, summary.task_a_drop, summary.converged_share) == (0, None, 0)


def test_one_head_has_no_event():
    summary = populate(replace(SHORT, heads=1), 20).summary()
    assert (summary.pr_event, summary.pr_event_predicted, summary.task_b_rise, summary.loser_median) == (0, 0, None, 0)


def test_summary_is_plain_json_and_carries_labels_and_order():
    runs = populate(replace(SHORT, beyond=Beyond(init_scale=2)), 30)
    plain = json.loads(json.dumps(asdict(runs.summary(loser_order=3.9))))
    assert plain["loser_order"] == 3.9
    assert plain["beyond"] == ["initialisation x 2"]
    assert np.shape(plain["winners_table"]) == (3, 3)


def test_summary_counts_by_hand():
    held = np.zeros((4, 2, 3))
    held[:2, 0, 0] = 1.0  # two runs on E: head 0 has the conflict, head 1 the rest
    held[:2, 1, 1:] = 1.0
    held[2:, 0, :] = 1.0  # two runs off E: head 0 has everything
    held[3, 0, 0] = 0.9  # not converged
    runs = Population(ToyConfig(heads=2), held, np.full(4, 10), np.zeros(4, dtype=np.bool_))
    summary = runs.summary()
    assert (summary.n_event, summary.pr_event, summary.pr_event_se, summary.converged_share) == (2, 0.5, 0.25, 0.75)
    assert summary.winners_table == ((4, 0), (2, 2), (2, 2))
    assert summary.task_b_rise is not None and summary.task_b_rise.q1 == summary.task_b_rise.q3 == 3


def test_progress_rises_to_one_and_may_stop_the_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "BLOCK_SEEDS", 8)
    told: list[float] = []
    populate(SHORT, 20, told.append)
    assert told == sorted(told) and told[-1] == 1.0 and len(told) > 20

    class Stopped(Exception):
        pass

    def stop(share: float) -> None:
        if share > 0.5:
            raise Stopped

    with pytest.raises(Stopped):
        populate(SHORT, 20, stop)


@pytest.mark.parametrize("n_seeds", [0, -3, 2.5, 10**7])
def test_a_senseless_number_of_seeds_is_refused(n_seeds: float):
    with pytest.raises(ToyError, match="seeds"):
        populate(SHORT, n_seeds)  # type: ignore[arg-type]


def test_scaling_comes_point_by_point_and_needs_two_for_a_slope():
    points = scaling(replace(SHORT, steps="converged"), (0.2, 0.3), 40)
    assert isinstance(points, Iterator)
    first = next(points)
    assert first.alpha == 0.2 and first.converged_share == 1.0
    with pytest.raises(ToyError, match="1 scales"):
        order_of([first])
    assert 3.5 < order_of([first, *points]) < 4.5


def test_one_head_has_no_losers_to_fit():
    with pytest.raises(ToyError, match="heads 1 leaves no losing head"):
        loser_order(replace(SHORT, heads=1), 10)


def test_trained_rows_are_in_the_order_of_the_seeds():
    forward, backward = train(SHORT, range(10)), train(SHORT, range(9, -1, -1))
    assert isinstance(forward, Trained)
    np.testing.assert_array_equal(forward.coefficients, backward.coefficients[::-1])
    assert isinstance(populate(SHORT, 2).summary(), PopulationSummary)


def test_a_population_starts_at_its_first_seed():
    shifted = populate(replace(SHORT, seed=5), 3)
    assert shifted.seeds.tolist() == [5, 6, 7]
    np.testing.assert_array_equal(shifted.coefficients, populate(SHORT, 8).coefficients[5:])
    assert not np.array_equal(total(shifted.coefficients)[0], total(shifted.coefficients)[1])
