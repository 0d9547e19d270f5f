"""The Live page's view of a search: what an address may ask, and what is shown of it."""

import pytest

from cel_core.errors import CelError, HeadError
from cel_core.heads import HeadSet
from cel_core.records import Part
from cel_core.store import Store
from cel_core.worker import WorkerState
from pages import examples, explanations, live, live_counts, programs, worker_line
from tests.pages.made_up import HOSTILE

Searches = tuple[Store, dict[str, str]]


def test_an_address_without_heads_shows_the_frozen_set_on_held_out_examples(searches: Searches):
    store, ids = searches
    record = store.search(ids["done"])
    view = live.view_of(record, {})
    assert (view.head_set, view.part, view.n) == (record.frozen_set, Part.HELD_OUT, record.n_held_out)
    assert live.view_of(record, {"heads": "none"}).head_set == HeadSet()
    assert live.view_of(store.search(ids["running"]), {}).part is Part.DISCOVERY


def test_an_address_comes_back_as_it_was(searches: Searches):
    store, ids = searches
    record = store.search(ids["done"])
    for words in ({"heads": "L0H1,L2H3", "part": "discovery"}, {"heads": "none", "part": "held-out"}):
        assert live.view_of(record, words).address == {"run": record.id, "example": "", **words}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"heads": "L9H9"}, "L9H9 is not in this model"),
        ({"heads": HOSTILE}, "is not a head"),
        ({"heads": "L0H1", "part": "test"}, "'test' is no side"),
    ],
)
def test_what_an_address_cannot_ask_is_refused_in_one_line(searches: Searches, words: dict[str, str], said: str):
    store, ids = searches
    with pytest.raises(CelError, match=said) as refused:
        live.view_of(store.search(ids["done"]), words)
    assert "\n" not in str(refused.value)


def test_held_out_examples_stay_sealed_before_the_freeze(searches: Searches):
    store, ids = searches
    record = store.search(ids["running"])
    with pytest.raises(CelError, match="sealed"):
        live.view_of(record, {"part": "held-out"})
    shown = live_counts.strip({}, record, Part.DISCOVERY, HeadSet(), 40, 40)
    assert shown.count(" disabled") == 1


def test_counters_agree_with_the_headline(searches: Searches):
    store, ids = searches
    record = store.search(ids["done"])
    assert record.frozen_set is not None and record.held_out is not None
    compared = examples.compared(store.paired(record.id, Part.HELD_OUT, record.frozen_set))
    shown = live_counts.counts(compared, record.frozen_set, record.n_held_out)
    assert f">{record.held_out.fixes}<" in shown and f">{record.held_out.harms}<" in shown
    assert f"Ablated, {len(record.frozen_set)} heads" in shown
    listed = live_counts.listed(compared, compared, "", "", complete=True)
    same = record.held_out.n - record.held_out.fixes - record.held_out.harms
    assert f"Unchanged {same}" in listed


def test_counters_of_nothing_yet_are_dashes(searches: Searches):
    store, ids = searches
    paired = store.paired(ids["done"], Part.HELD_OUT, HeadSet.parse("L0H0,L0H1"))
    shown = live_counts.counts(examples.compared(paired), HeadSet.parse("L0H0,L0H1"), 40)
    assert shown.count("–") == 5 and "n = 0 of 40" in shown
    assert "Waiting for the first examples" in live_counts.listed(
        examples.compared(paired), examples.compared(paired), "", "", complete=False
    )


def test_a_prompt_is_neither_empty_nor_endless():
    assert live.prompt_of(" 2 + 2 =") == " 2 + 2 ="
    for text in ("", "  \n", None, "x" * 20_001):
        with pytest.raises(CelError):
            live.prompt_of(text)


def test_only_answers_that_the_model_writes_wait_for_it(searches: Searches):
    store, ids = searches
    assert "data-fetch" in explanations.waiting(store.search(ids["done"]), "key", HeadSet.parse("L0H1"))
    assert explanations.waiting(store.search(ids["boolq"]), "key", HeadSet.parse("L0H1")) == ""
    shown = explanations.show({"prompt": "p", "intact": HOSTILE, "ablated": ""}, True, HeadSet())
    assert "<img" not in shown and "(nothing)" in shown


def test_a_difference_has_what_went_and_what_came():
    lines = programs.difference("def f(x):\n  return 1\n", "def f(x):\n  return <b>\n")
    assert [line.split(">")[1][0] for line in lines] == [" ", "-", "+"]
    assert "&lt;b&gt;" in "".join(lines) and programs.difference("a\n", "a") == []


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (WorkerState(), "worker idle"),
        (WorkerState(dtype="float32", device="cpu"), "worker idle  ·  float32 on cpu"),
        (WorkerState("loading", model="org/name"), "worker loading name"),
        (WorkerState("loading", detail="starting"), "worker starting"),
        (WorkerState("dead", detail="killed"), "worker not running: killed"),
    ],
)
def test_the_worker_is_told_in_a_line(state: WorkerState, said: str):
    assert worker_line.line(state, None, None) == said


def test_a_running_worker_tells_stage_share_and_time(searches: Searches):
    store, ids = searches
    record = store.search(ids["running"])
    said = worker_line.line(WorkerState("running", record.id), record, 95.0)
    assert said == f"worker running {record.id}: stage 1 of 2, 51 %, about 2 min left"


def test_a_head_outside_the_model_is_an_error_of_the_user(searches: Searches):
    store, ids = searches
    with pytest.raises(HeadError):
        live.heads_of(store.search(ids["done"]), "L0H0,L6H0")
