import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from cel_core import experiment, search
from cel_core.config import SearchConfig
from cel_core.errors import ConfigError, ModelError
from cel_core.evaluation import Evaluator
from cel_core.heads import INTACT, all_heads
from cel_core.models import Model
from cel_core.records import Part, Status
from cel_core.search import join, screen
from cel_core.store import Store
from cel_core.tasks import find_task
from tests.conftest import build_tiny

CONFIG = SearchConfig("tiny", "carry", n_discovery=6, n_held_out=5, p=4, k=2, full_sweep=True)


@pytest.fixture
def model() -> Model:
    return build_tiny("llama")


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "cel.duckdb")


@pytest.fixture(autouse=True)
def _configuration(monkeypatch, model):
    """The tiny model has no folder to read a configuration from."""
    monkeypatch.setattr(experiment, "read_config", lambda _: (model.causal_lm.config, ""))


@pytest.fixture
def counted(monkeypatch) -> list[tuple[str, str]]:
    """Every evaluation made: head set and example."""
    made: list[tuple[str, str]] = []
    real = Evaluator.outcomes

    def outcomes(self, head_sets, examples):
        for frame in real(self, head_sets, examples):
            made.extend((str(head_set), key) for head_set in frame.head_sets for key in frame.examples)
            yield frame

    monkeypatch.setattr(Evaluator, "outcomes", outcomes)
    return made


def start(store, model, config=CONFIG, report=lambda _: None):
    return experiment.start(config, store, report, lambda _: model)


def table(store: Store, run: str):
    """All that a search found, for comparison."""
    record = store.search(run)
    parts = [store.tallies(run, part).to_dict("records") for part in Part]
    return record.frozen_set, record.held_out, store.ranking(run, 1), store.ranking(run, 2), parts


def test_a_search_is_algorithm_1_over_outcomes_made_one_by_one(store, model):
    record = start(store, model)
    evaluator = Evaluator(model, find_task("carry"))
    examples = store.examples(record.id, Part.DISCOVERY)

    def by_hand(head_sets, numbers):
        return np.array([[answered_right(evaluator, head_set, examples[i]) for i in numbers] for head_set in head_sets])

    singles = screen(all_heads(3, 4), 4, range(len(examples)), by_hand)
    subsets = join(singles, 4, 2, range(len(examples)), by_hand)
    assert store.ranking(record.id, 1) == singles
    assert store.ranking(record.id, 2) == subsets
    assert record.frozen_set == subsets[0].head_set
    assert record.status is Status.DONE
    assert record.held_out.n == 5


def answered_right(evaluator, head_set, example) -> bool:
    """Whether one example is answered right, evaluated in a call of its own."""
    return bool(next(evaluator.outcomes([head_set], [example])).correct[0, 0])


def test_the_bounded_search_ends_in_the_same_pool_frozen_set_and_comparison(store, model, counted, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "CHUNK", 3)
    rows = [{"passage": f"{i % 7} {i}", "question": f"is {i} odd", "label": i % 2} for i in range(30)]
    (tmp_path / "boolq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = SearchConfig("tiny", "boolq", str(tmp_path), n_discovery=20, n_held_out=5, p=4, k=2, full_sweep=True)
    whole = start(Store(tmp_path / "whole.duckdb"), model, config)
    n_whole, counted[:] = len(counted), []
    record = start(store, model, SearchConfig(**{**vars(config), "full_sweep": False}))
    assert len(counted) < n_whole
    pool = Store(tmp_path / "whole.duckdb").ranking(whole.id, 1)[:4]
    assert store.ranking(record.id, 1)[:4] == pool
    assert (record.frozen_set, record.held_out) == (whole.frozen_set, whole.held_out)
    assert record.done == record.total


def test_held_out_examples_are_first_evaluated_after_the_freeze(store, model, counted):
    seen = []

    def report(progress):
        record = store.search(progress.search)
        if record.frozen_set is None:
            seen.append(len(counted))

    record = start(store, model, report=report)
    held_out = {example.key for example in store.examples(record.id, Part.HELD_OUT)}
    before = counted[: seen[-1]]
    assert before and not {example for _, example in before} & held_out
    after = [case for case in counted if case[1] in held_out]
    assert {head_set for head_set, _ in after} == {"", str(record.frozen_set)}


def test_each_outcome_is_evaluated_once(store, model, counted):
    start(store, model)
    assert len(counted) == len(set(counted)) == 6 * (1 + 12 + 6) + 2 * 5


@pytest.mark.parametrize("after", [0, 20, 70, 100, 115, 120])
def test_a_stopped_search_goes_on_and_ends_in_the_same_table(store, model, counted, after, tmp_path):
    whole = start(Store(tmp_path / "whole.duckdb"), model)
    total, counted[:] = len(counted), []

    def stop(progress):
        if len(counted) >= after and progress.stage != "loading":
            raise experiment.Stopped

    with pytest.raises(experiment.Stopped):
        start(store, model, report=stop)
    (record,) = store.searches()
    assert record.status is Status.STOPPED
    resumed = experiment.resume(record.id, store, lambda _: None, lambda _: model)
    assert len(counted) == len(set(counted)) == total  # only what was missing was evaluated
    assert table(store, resumed.id) == table(Store(tmp_path / "whole.duckdb"), whole.id)
    assert resumed.duration_s > record.duration_s


def test_a_second_search_reuses_what_the_first_one_knows(store, model, counted):
    start(store, model)
    counted.clear()
    bigger = SearchConfig("tiny", "carry", n_discovery=6, n_held_out=5, p=5, k=2, full_sweep=True)
    start(store, model, bigger)
    joint_with_fifth_head = 4 * 6
    assert len(counted) <= joint_with_fifth_head + 2 * 5
    counted.clear()
    start(store, model)
    assert counted == []


@pytest.mark.parametrize("change", [{"seed": 1}, {"task": "no-carry"}])
def test_another_draw_or_task_is_not_mistaken_for_the_first(store, model, counted, change):
    start(store, model)
    first = set(counted)
    counted.clear()
    start(store, model, SearchConfig(**{**vars(CONFIG), **change}))
    assert not first & set(counted) or change == {"seed": 1}
    assert len(counted) > 100 - 60


def test_a_resumed_search_refuses_another_model(store, model):
    with pytest.raises(experiment.Stopped):
        start(store, model, report=_stop_at_stage_one)
    (record,) = store.searches()
    with pytest.raises(Exception, match="begun with another model"):
        experiment.resume(record.id, store, lambda _: None, lambda _: build_tiny("llama", seed=9))
    assert store.search(record.id).status is Status.FAILED


def _stop_at_stage_one(progress):
    if progress.stage != "loading":
        raise experiment.Stopped


def test_what_a_user_can_mend_is_said_before_a_search_exists(store, model, monkeypatch):
    for changes, message in [
        ({"p": 13, "k": 2}, "p = 13: the model has only 12 heads"),
        ({"n_discovery": 10**6}, "--discovery 1000000: only"),
        ({"task": "mbpp", "data": "samples", "n_discovery": None, "n_held_out": None}, "--allow-code-execution"),
    ]:
        with pytest.raises(ConfigError, match=message):
            start(store, model, SearchConfig(**{**vars(CONFIG), **changes}))
    assert store.searches() == []


def test_a_model_that_does_not_load_leaves_a_failed_search_with_the_reason(store):
    def broken(_):
        raise ModelError("model 'tiny' cannot be loaded: give another")

    with pytest.raises(ModelError):
        experiment.start(CONFIG, store, lambda _: None, broken)
    (record,) = store.searches()
    assert (record.status, record.error) == (Status.FAILED, "model 'tiny' cannot be loaded: give another")


def test_the_config_refuses_what_cannot_be(store):
    for changes, message in [({"p": 0}, "p = 0"), ({"k": 0}, "k = 0"), ({"p": 2, "k": 3}, "k = 3 is larger than p = 2")]:
        with pytest.raises(ConfigError, match=message):
            SearchConfig(**{**vars(CONFIG), **changes})
    with pytest.raises(ConfigError, match="dtype 'int4' is unknown"):
        SearchConfig("m", "carry", dtype="int4")


_SCRIPT = """
import sys, time
from tests.conftest import build_tiny
from cel_core import experiment, search
from cel_core.store import Store
from tests.test_experiment import CONFIG
model = build_tiny("llama")
experiment.read_config = lambda _: (model.causal_lm.config, "")
experiment.FLUSH_S = 0
experiment.start(CONFIG, Store(sys.argv[1]), lambda progress: time.sleep(0.2), lambda _: model)
"""


def test_a_killed_search_goes_on_from_what_is_stored(store, model, counted, tmp_path):
    whole = start(Store(tmp_path / "whole.duckdb"), model)
    total, counted[:] = len(counted), []
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT, str(store.path)], cwd=os.getcwd())
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        records = store.searches()
        if records and records[0].done > 0.4 * records[0].total > 0:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (record,) = store.searches()
    assert record.status is Status.INTERRUPTED
    resumed = experiment.resume(record.id, store, lambda _: None, lambda _: model)
    assert 0 < len(counted) < total - 30
    assert table(store, resumed.id) == table(Store(tmp_path / "whole.duckdb"), whole.id)


def test_the_intact_model_and_every_head_are_known_after_a_full_sweep(store, model):
    record = start(store, model)
    known = store.known(record.id, Part.DISCOVERY)
    assert INTACT in known and len(known) == 1 + 12 + 6
    assert {len(positions) for positions, _ in known.values()} == {6}


def test_a_chat_template_around_mbpp_is_noted():
    config = SearchConfig("tiny", "mbpp", "samples", chat_template=True, p=4, allow_code_execution=True)
    assert "mbpp-instruct is the variant made for chat models" in experiment.draw(config).notes[-1]
    plain = SearchConfig("tiny", "mbpp-instruct", "samples", chat_template=True, p=4, allow_code_execution=True)
    assert not any("chat" in note for note in experiment.draw(plain).notes)


def test_an_approximate_screen_evaluates_the_shortlist_alone_and_says_so(store, model, counted):
    config = SearchConfig(**{**vars(CONFIG), "shortlist": 5})
    seen: list[str] = []
    record = experiment.start(config, store, lambda progress: seen.append(progress.stage), lambda _: model)
    assert len(store.ranking(record.id, 1)) == 5
    assert len({heads for heads, _ in counted if heads.count("L") == 1}) == 5
    shown = store.search(record.id).as_json()
    assert (shown["approximate_screen"], shown["shortlist"]) == (True, 5)
    assert "attribution" in seen
    assert record.held_out.n == 5
    exact = start(Store(store.path.with_name("exact.duckdb")), model)
    assert (exact.as_json()["approximate_screen"], exact.as_json()["shortlist"]) == (False, None)


def test_a_shortlist_that_cannot_be_is_refused_before_the_model_is_loaded(store):
    with pytest.raises(ConfigError, match="a shortlist of 3 is smaller than p = 4: give 4 or more"):
        SearchConfig(**{**vars(CONFIG), "shortlist": 3})
    config = SearchConfig("tiny", "mbpp", "samples", p=4, shortlist=5, allow_code_execution=True)
    with pytest.raises(ConfigError, match="'mbpp' has no margin to attribute"):
        experiment.draw(config)


def test_a_search_that_is_stopped_has_told_how_far_it_is(store, model):
    config = SearchConfig(**{**vars(CONFIG), "shortlist": 5})
    told = []

    def stop(progress):
        told.append(progress)
        if progress.stage == "attribution" and progress.done == 4:
            raise experiment.Stopped("stopped")

    with pytest.raises(experiment.Stopped):
        start(store, model, config, stop)
    [record] = store.searches()
    assert (record.stage, record.done, record.total) == ("attribution", 4, told[-1].total)


def test_a_search_over_known_outcomes_ends_with_all_of_its_last_stage_done(store, model):
    start(store, model)
    again = start(store, model)
    assert again.token_layers == 0 and (again.stage, again.done) == ("held-out", again.total) and again.total > 0
