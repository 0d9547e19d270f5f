"""The phase map: cells come one by one, agree with populations, and say where there is no model."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from cel_core.errors import ToyError
from cel_core.toy import phase
from cel_core.toy.config import Beyond, ToyConfig
from cel_core.toy.model import delete_head, risks
from cel_core.toy.phase import PHASE_SETTINGS, Axis, best_deletion, phase_map, with_settings
from cel_core.toy.population import populate

CONFIG = ToyConfig(alpha=0.3, steps="converged")


def test_cells_come_row_by_row_and_no_further_than_asked(monkeypatch: pytest.MonkeyPatch):
    trained: list[ToyConfig] = []
    monkeypatch.setattr(phase, "populate", lambda config, n: trained.append(config) or populate(config, n))
    cells = phase_map(CONFIG, Axis("alpha", (0.3, 0.4)), Axis("heads", (2, 3, 4)), 10)
    assert isinstance(cells, Iterator) and trained == []
    three = list(islice(cells, 3))
    assert [(cell.x, cell.y) for cell in three] == [(0.3, 2), (0.4, 2), (0.3, 3)]
    assert [(config.alpha, config.heads) for config in trained] == [(0.3, 2), (0.4, 2), (0.3, 3)]
    assert len(list(cells)) == 3


def test_a_cell_is_its_population():
    cell = next(phase_map(CONFIG, Axis("alpha", (0.15,)), Axis("eta", (0.05,)), 300))
    runs = populate(replace(CONFIG, alpha=0.15), 300)
    assert cell.pr_event == runs.event.mean()
    assert cell.converged_share == 1 and cell.diverged_share == 0 and cell.problem is None
    assert cell.median_gain == pytest.approx(1, abs=0.02)
    # With b = t, task A gains whenever V has another winner than U: two thirds of runs.
    assert cell.pr_beneficial == pytest.approx(2 / 3, abs=0.09)
    assert cell.pr_beneficial_se is not None and 0.02 < cell.pr_beneficial_se < 0.03


def test_best_deletion_is_that_of_brute_force():
    config = ToyConfig(alpha=0.9, heads=4, steps=3, beyond=Beyond(n_tasks=3, init_scale=2))
    runs = populate(config, 50)
    best = best_deletion(runs)
    for held, gain, exists in zip(runs.coefficients, *best, strict=True):
        intact = risks(held.sum(axis=0), config).tasks
        by_hand = max((intact - delete_head(held, head, config).tasks).max() for head in range(4))
        assert gain == pytest.approx(by_hand)
        assert exists == (gain > 0.1)


def test_a_localized_run_has_its_beneficial_head_and_a_single_head_that_has_all_has_none():
    held = np.zeros((2, 3, 3))
    held[0] = np.diag((1.0, 1.0, 1.0))
    held[1, 0] = 1.0
    runs = replace(populate(replace(CONFIG, steps=1), 2), coefficients=held)
    best = best_deletion(runs)
    assert best.gain.tolist() == [1.0, 0.0]
    assert best.exists.tolist() == [True, False]


def test_settings_without_a_model_are_cells_with_a_problem():
    cells = list(phase_map(CONFIG, Axis("eta", (0.05, 3.0)), Axis("batch_size", (0, 16)), 5))
    assert [cell.problem is None for cell in cells] == [True, False, False, False]
    assert "eta 3 oscillates or diverges" in (cells[1].problem or "")
    assert "converged is never reached" in (cells[2].problem or "")
    assert cells[1].pr_beneficial is None


def test_diverged_cells_say_so_and_claim_nothing():
    config = replace(CONFIG, steps=300)
    cell = next(phase_map(config, Axis("init_scale", (100,)), Axis("eta", (20,)), 5))
    assert (cell.diverged_share, cell.pr_beneficial, cell.median_gain, cell.problem) == (1, None, None, None)


def test_weights_move_the_gain_as_predicted():
    cells = list(phase_map(CONFIG, Axis("weight_a", (0.25, 0.75)), Axis("heads", (3,)), 100))
    assert cells[0].median_gain == pytest.approx(1.5**2, rel=0.05)
    assert cells[1].median_gain is not None and cells[1].median_gain < 1


@pytest.mark.parametrize("setting", PHASE_SETTINGS)
def test_every_setting_reaches_the_configuration(setting: str):
    base = replace(CONFIG, steps=10, beyond=Beyond(batch_size=4))
    value = {"weight_a": 0.25, "heads": 5, "n_tasks": 3, "batch_size": 9, "alpha": 0.21, "eta": 0.06}.get(setting, 0.7)
    changed = with_settings(base, {setting: value})
    if setting == "weight_a":
        assert changed.beyond.task_weights == (0.25, 0.75)
    else:
        held = changed.beyond if hasattr(changed.beyond, setting) else changed
        assert getattr(held, setting) == value


def test_weight_and_number_of_tasks_go_together():
    changed = with_settings(CONFIG, {"n_tasks": 3, "weight_a": 0.5})
    assert changed.beyond.task_weights == (0.5, 0.25, 0.25)


@pytest.mark.parametrize(
    ("x", "y", "n_seeds", "message"),
    [
        (Axis("gamma", (1,)), Axis("eta", (0.1,)), 5, "'gamma' is no setting to map"),
        (Axis("eta", ()), Axis("alpha", (0.1,)), 5, "0 values of eta"),
        (Axis("eta", (0.1,)), Axis("eta", (0.1,)), 5, "cannot be both sides"),
        (Axis("eta", (0.1,)), Axis("alpha", (0.1,)), 0, "seeds 0"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused_at_once(x: Axis, y: Axis, n_seeds: int, message: str):
    with pytest.raises(ToyError, match=message):
        phase_map(CONFIG, x, y, n_seeds)


def test_a_fractional_number_of_heads_is_a_problem_of_its_cell():
    cell = next(phase_map(CONFIG, Axis("heads", (2.5,)), Axis("alpha", (0.3,)), 5))
    assert cell.problem is not None and "heads 2.5" in cell.problem
