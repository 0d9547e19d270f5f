"""The worker process for real, on a tiny model saved to a folder."""

import json
import os
import shutil
import signal
import time
from types import SimpleNamespace

import duckdb
import pytest

from cel_core.config import SearchConfig
from cel_core.errors import CelError, ConfigError, StoreError
from cel_core.heads import HeadSet
from cel_core.records import Part, Status
from cel_core.store import Store
from cel_core.worker import LiveState, Worker, WorkerState
from tests.conftest import build_tiny

PATIENCE_S = 120


def until(condition, what: str):
    """Wait for a condition to hold, and return what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> SearchConfig:
    folder = tmp_path_factory.mktemp("worker")
    model = build_tiny("llama")
    model.causal_lm.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    rows = [{"passage": f"{i} is a number", "question": f"is {i} odd", "label": i % 2} for i in range(400)]
    (folder / "boolq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SearchConfig(str(folder), "boolq", str(folder), n_discovery=8, n_held_out=8, p=3, k=2)


def bigger(config: SearchConfig) -> SearchConfig:
    """A search that takes long enough to do something meanwhile."""
    return SearchConfig(**{**vars(config), "n_discovery": 300, "n_held_out": 50, "full_sweep": True})


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("store") / "cel.duckdb")
    worker.start()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def store(worker) -> Store:
    return worker._store


@pytest.fixture(scope="module")
def done(worker, store, config) -> str:
    """A finished search."""
    search = worker.launch(config)
    assert store.search(search).status in (Status.QUEUED, Status.RUNNING)
    until(lambda: store.search(search).status is Status.DONE, "the search to finish")
    return search


def test_a_launched_search_runs_to_its_end_and_the_worker_is_idle_again(worker, store, done):
    assert store.search(done).held_out.n == 8
    assert store.search(done).environment["torch"]
    until(lambda: worker.state().status == "idle", "the worker to be idle")
    assert worker.state().dtype == "float32"


def test_live_outcomes_appear_in_the_store(worker, store, done):
    head_set = HeadSet.parse("L0H1,L1H2,L2H3")
    worker.live("one", done, Part.HELD_OUT, head_set)
    until(lambda: not worker.live_state("one").running, "the live outcomes")
    assert worker.live_state("one").error == ""
    assert len(store.paired(done, Part.HELD_OUT, head_set)) == 8


def test_a_live_request_that_cannot_be_met_says_why(worker, done):
    worker.live("bad", done, Part.DISCOVERY, HeadSet.parse("L9H9"))
    until(lambda: worker.live_state("bad").error, "the error")
    assert "L9H9 is not in this model" in worker.live_state("bad").error


def test_a_prompt_is_answered_with_and_without_heads(worker, done):
    intact, ablated = worker.answer(done, "hello", HeadSet.parse("L0H0"))
    assert isinstance(intact, str) and isinstance(ablated, str)
    with pytest.raises(CelError, match="L7H0 is not in this model"):
        worker.answer(done, "hello", HeadSet.parse("L7H0"))


def test_an_example_is_explained_and_a_forged_one_refused(worker, store, done):
    (example, *_) = store.examples(done, Part.DISCOVERY)
    assert worker.explain(done, example.key, HeadSet.parse("L0H0"))["prompt"] == example.context
    with pytest.raises(CelError, match="has no example 'forged'"):
        worker.explain(done, "forged", HeadSet())


def test_a_live_request_is_answered_while_a_search_runs_and_stop_keeps_what_is_there(worker, store, config, done):
    search = worker.launch(bigger(config))
    until(lambda: store.search(search).done > 0, "the search to begin")
    worker.live("two", done, Part.DISCOVERY, HeadSet.parse("L0H3,L2H0"))
    until(lambda: not worker.live_state("two").running, "the live outcomes")
    assert len(store.paired(done, Part.DISCOVERY, HeadSet.parse("L0H3,L2H0"))) == 8
    assert store.search(search).status is Status.RUNNING  # it did not have to end first
    worker.stop(search)
    until(lambda: store.search(search).status is Status.STOPPED, "the stop")
    kept = store.search(search).done
    assert 0 < kept < store.search(search).total
    until(lambda: worker.state().status == "idle", "the worker to be idle")


def test_a_killed_worker_is_a_failed_search_with_a_reason_and_resumes(worker, store, config):
    search = worker.launch(SearchConfig(**{**vars(bigger(config)), "seed": 5}))
    until(lambda: store.search(search).done > 0, "the search to begin")
    first = worker._process.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: store.search(search).status is Status.FAILED, "the failure")
    assert "the worker was killed (signal 9)" in store.search(search).error
    until(lambda: worker._process.pid != first and worker.state().status == "idle", "another worker")
    worker.resume(search)
    until(lambda: store.search(search).status is Status.RUNNING, "the search to go on")
    worker.stop(search)
    until(lambda: store.search(search).status is Status.STOPPED, "the stop")


def test_a_search_that_fails_says_so_and_the_worker_goes_on(worker, store, config, done):
    search = worker.launch(SearchConfig(**{**vars(config), "model": "./nowhere"}))
    until(lambda: store.search(search).status is Status.FAILED, "the failure")
    assert "is not a folder" in store.search(search).error
    with pytest.raises(ConfigError, match="task 'chess' is unknown"):
        worker.launch(SearchConfig("demo", "chess"))
    with pytest.raises(StoreError, match="is done: only a stopped"):
        worker.resume(done)


def test_an_estimate_counts_what_the_search_then_does(worker, store, config, done):
    found = worker.estimate(config)
    assert (found["n_discovery"], found["n_held_out"]) == (8, 8)
    assert found["n_evaluations"] == (1 + 12 + 3) * 8 + 2 * 8
    assert found["seconds"] > 0  # from the finished search
    n_weights = sum(p.numel() for p in build_tiny("llama").causal_lm.parameters())
    assert found["weight_bytes"] == pytest.approx(4 * n_weights, rel=0.05)
    with pytest.raises(CelError, match="p = 99: the model has only 12 heads"):
        worker.estimate(SearchConfig(**{**vars(config), "p": 99}))


def test_a_search_that_found_its_outcomes_stored_makes_no_estimate_shorter(worker, store, config, done):
    before = worker.estimate(config)["seconds"]
    search = worker.launch(SearchConfig(**{**vars(config), "p": 4}))
    until(lambda: store.search(search).status is Status.DONE, "the search to finish")
    assert 0 < store.search(search).token_layers < store.search(done).token_layers
    assert worker.estimate(config)["seconds"] == before


def test_closing_ends_the_process(tmp_path):
    worker = Worker(tmp_path / "cel.duckdb")
    worker.start()
    until(lambda: worker.state().status == "idle", "the worker to start")
    worker.close()
    assert worker._process.poll() is not None
    with pytest.raises(CelError, match="the worker is not running"):
        worker.launch(SearchConfig("demo", "carry"))


def test_a_model_that_changed_on_disk_answers_nothing_in_an_old_searchs_name(worker, store, config, tmp_path):
    folder = tmp_path / "changing"
    shutil.copytree(config.model, folder)
    search = worker.launch(SearchConfig(**{**vars(config), "model": str(folder)}))
    until(lambda: store.search(search).status is Status.DONE, "the search to finish")
    other = build_tiny("llama", seed=9)
    other.causal_lm.save_pretrained(folder)
    later = Worker(store.path)
    later.start()
    try:
        later.live("one", search, Part.DISCOVERY, HeadSet.parse("L0H1,L1H2,L2H3"))
        until(lambda: later.live_state("one").error, "the refusal")
        assert "was made with another model" in later.live_state("one").error
        assert len(store.paired(search, Part.DISCOVERY, HeadSet.parse("L0H1,L1H2,L2H3"))) == 0
    finally:
        later.close()


def test_a_fault_in_a_question_leaves_the_worker_alive(worker, config):
    with pytest.raises(CelError, match="'~nouser/x' cannot be a path"):
        worker.estimate(SearchConfig(**{**vars(config), "data": "~nouser/x"}))
    assert worker.estimate(config)["n_discovery"] == 8


def test_a_process_that_ends_at_its_start_is_not_started_for_ever(tmp_path):
    worker = Worker(tmp_path / "cel.duckdb")
    with duckdb.connect(tmp_path / "cel.duckdb") as database:
        database.execute("INSERT INTO schema_version VALUES (999)")
    worker.start()
    until(lambda: worker.state().status == "dead" and worker._n_stillborn == 3, "the worker to give up")
    time.sleep(1)
    assert worker.state().status == "dead"
    with duckdb.connect(tmp_path / "cel.duckdb") as database:
        database.execute("DELETE FROM schema_version WHERE version = 999")
    with pytest.raises(CelError, match="the worker is not running"):
        worker.launch(SearchConfig("demo", "carry"))
    assert [record.status for record in worker._store.searches()] == [Status.STOPPED]  # nothing waits for what never comes


def test_a_process_that_dies_while_it_loads_for_a_page_is_not_stillborn(tmp_path):
    worker = Worker(tmp_path / "cel.duckdb")
    worker.start()
    try:
        for died in range(4):
            until(lambda: worker.state().status == "idle", "the worker to start")
            worker._state = WorkerState("loading", detail="some/model")  # as a live request makes it
            worker._process.kill()
            until(lambda: worker.state().detail != "some/model", f"death {died} to be seen")
        until(lambda: worker.state().status == "idle", "the worker to start again")
    finally:
        worker.close()


def test_an_older_requests_answer_says_nothing_of_the_newest_one(tmp_path):
    worker = Worker(tmp_path / "cel.duckdb")
    said = []
    worker._send = said.append
    for heads in ("L0H0", "L0H1"):
        worker.live("one", "a", Part.DISCOVERY, HeadSet.parse(heads))
    first, second = (message["request"] for message in said)
    lines = [
        {"session": "one", "request": second, "done": 3, "total": 9, "running": True},
        {"session": "one", "request": first, "error": "too late"},
        {"session": "gone", "request": 1, "done": 1},
    ]
    worker._closing = True
    worker._listen(SimpleNamespace(stdout=[json.dumps(line) for line in lines], wait=lambda: 0))
    assert worker.live_state("one") == LiveState(3, 9, True, request=second)
    assert worker.live_state("gone") == LiveState()
