"""Toy runs and figures in the store: exact where recorded, found by equal settings alone, beside searches of old stores."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cel_core import database
from cel_core.config import SearchConfig
from cel_core.store import Store
from cel_core.toy import MAX_POINTS, Beyond, Method, ToyConfig, Trajectory, populate, run

CONFIG = ToyConfig(alpha=0.3, seed=2)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cel.duckdb")


def assert_same(found: Trajectory | None, saved: Trajectory) -> None:
    assert found is not None
    assert (found.config, found.method, found.converged) == (saved.config, saved.method, saved.converged)
    assert found.diverged_by == saved.diverged_by
    np.testing.assert_array_equal(found.steps, saved.steps)
    np.testing.assert_array_equal(found.coefficients, saved.coefficients)
    assert found.steps.dtype == saved.steps.dtype and found.coefficients.dtype == saved.coefficients.dtype
    np.testing.assert_array_equal(found.risks.tasks, saved.risks.tasks)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        (ToyConfig(alpha=0.15, steps="converged"), "descent"),
        (CONFIG, "flow"),
        (ToyConfig(steps=1), "descent"),
        (ToyConfig(alpha=0.3, heads=7, seed=2**62, beyond=Beyond(n_tasks=4, optimizer="adam")), "descent"),
    ],
)
def test_a_run_comes_back_exactly(store: Store, config: ToyConfig, method: Method):
    saved = run(config, method)
    store.save_toy_run(saved)
    found = Store(store.path).toy_run(config, method)
    assert_same(found, saved)
    assert found is not None and len(found.steps) <= MAX_POINTS


def test_a_diverged_run_comes_back_flagged_and_without_nan(store: Store):
    config = ToyConfig(steps=500, beyond=Beyond(init_scale=60))
    saved = next(each for each in (run(replace(config, seed=seed)) for seed in range(20)) if each.diverged)
    store.save_toy_run(saved)
    found = store.toy_run(saved.config)
    assert_same(found, saved)
    assert found is not None and found.diverged and np.isfinite(found.coefficients).all()


def test_only_equal_settings_find_a_run(store: Store):
    store.save_toy_run(run(CONFIG))
    assert store.toy_run(ToyConfig(a=2, b=1, c=1, alpha=np.float64(0.3), seed=2)) is not None
    for other in (replace(CONFIG, seed=3), replace(CONFIG, a=2.0000001), replace(CONFIG, beyond=Beyond(init_scale=1.1))):
        assert store.toy_run(other) is None
    assert store.toy_run(CONFIG, "flow") is None
    store.save_toy_run(run(CONFIG, "flow"))
    both = [store.toy_run(CONFIG, method) for method in ("descent", "flow")]
    assert [each and each.method for each in both] == ["descent", "flow"]


def test_a_run_saved_again_stays_as_it_was(store: Store):
    first = run(CONFIG)
    store.save_toy_run(first)
    store.save_toy_run(replace(first, steps=first.steps[::2], coefficients=first.coefficients[::2]))
    assert_same(store.toy_run(CONFIG), first)


def test_page_threads_may_save_the_same_runs_at_once(store: Store):
    saved = [run(replace(CONFIG, seed=seed)) for seed in range(4)]
    summary = populate(CONFIG, 5).summary()
    failures: list[Exception] = []

    def save_all() -> None:
        try:
            for each in saved:
                store.save_toy_run(each)
                store.save_toy_summary(each.config, summary)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=save_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for each in saved:
        assert_same(store.toy_run(each.config), each)
        assert store.toy_summary(each.config, 5) == summary


@pytest.mark.parametrize("heads", [1, 3])
def test_a_populations_figures_come_back(store: Store, heads: int):
    config = replace(CONFIG, heads=heads)
    summary = populate(config, 40).summary()
    assert (summary.task_a_drop is None) == (heads == 1)
    store.save_toy_summary(config, summary)
    assert store.toy_summary(config, 40) == summary
    assert store.toy_summary(config, 41) is None and store.toy_summary(replace(config, eta=0.06), 40) is None
    with_order = replace(summary, loser_order=3.97)
    store.save_toy_summary(config, with_order)
    assert store.toy_summary(config, 40) == with_order


def test_a_store_of_the_first_version_keeps_its_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(database, "STEPS", database.STEPS[:1])
        old = Store(tmp_path / "old.duckdb")
        search = old.create_search(SearchConfig("demo", "carry"), {"torch": "2"})
    opened = Store(tmp_path / "old.duckdb")
    kept = opened.search(search)
    assert (kept.config, kept.environment) == (SearchConfig("demo", "carry"), {"torch": "2"})
    assert (kept.token_layers, kept.plain_token_layers) == (0.0, None)  # what later versions added
    saved = run(CONFIG)
    opened.save_toy_run(saved)
    assert_same(opened.toy_run(CONFIG), saved)
    assert Store(tmp_path / "old.duckdb").searches() == [kept]
