"""The Live page's view of a search: what an address may ask, and what is shown of it."""

from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from cel_core.errors import CelError, HeadError, StoreError
from cel_core.heads import HeadSet
from cel_core.records import Part
from cel_core.store import Store
from cel_core.worker import Worker, WorkerState
from pages import examples, explanations, formats, live, live_counts, programs, worker_line
from tests.pages.conftest import handlers
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
    listed = live_counts.listed(record, compared, compared, "", "", complete=True)
    same = record.held_out.n - record.held_out.fixes - record.held_out.harms
    assert f"Unchanged {same}" in listed


def test_counters_of_nothing_yet_are_dashes(searches: Searches):
    store, ids = searches
    paired = store.paired(ids["done"], Part.HELD_OUT, HeadSet.parse("L0H0,L0H1"))
    shown = live_counts.counts(examples.compared(paired), HeadSet.parse("L0H0,L0H1"), 40)
    assert shown.count("–") == 5 and "n = 0 of 40" in shown
    compared = examples.compared(paired)
    listed = live_counts.listed(store.search(ids["done"]), compared, compared, "", "", complete=False)
    assert "Waiting for the first examples" in listed


def test_a_prompt_is_neither_empty_nor_endless():
    assert live.prompt_of(" 2 + 2 =") == " 2 + 2 ="
    for text in ("", "  \n", None, "x" * 20_001):
        with pytest.raises(CelError):
            live.prompt_of(text)


def test_only_answers_that_the_model_writes_wait_for_it(searches: Searches):
    store, ids = searches
    assert "data-fetch" in explanations.place(store.search(ids["done"]), "key", HeadSet.parse("L0H1"))
    assert explanations.place(store.search(ids["boolq"]), "key", HeadSet.parse("L0H1")) == ""
    later = explanations.place(store.search(ids["done"]), "key", HeadSet.parse("L0H1"), at_once=False)
    assert "data-fetch" not in later and "<button" in later and "data-ask=" in later
    shown = explanations.show({"prompt": "p", "intact": HOSTILE, "ablated": ""}, True, HeadSet())
    assert "<img" not in shown and "(nothing: it ends here)" in shown


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
    loading = WorkerState("loading", record.id, detail="other/model")  # for a page, in the middle of the search
    assert worker_line.line(loading, record, None) == "worker loading model"
    said = worker_line.line(WorkerState("running", record.id), record, 95.0)
    assert said == f"worker running {record.id}: stage 1 of 2, 51 %, about 2 min left"


def test_a_head_outside_the_model_is_an_error_of_the_user(searches: Searches):
    store, ids = searches
    with pytest.raises(HeadError):
        live.heads_of(store.search(ids["done"]), "L0H0,L6H0")


def event(**data: str) -> SimpleNamespace:
    return SimpleNamespace(_data=data)


def test_an_answer_is_titled_with_the_heads_it_was_written_without(searches: Searches):
    store, ids = searches
    record = store.search(ids["done"])
    now = live.View(record, Part.DISCOVERY, HeadSet.parse("L1H2"))

    class Switching(Worker):
        def answer(self, search: str, text: str, head_set: HeadSet) -> tuple[str, str]:
            now.head_set = HeadSet.parse("L5H7")  # somebody switches while the model writes
            return "intact", f"without {head_set}"

    shown = handlers(store, Switching(store.path))["pages.live", "answered"](now, "2 + 2 =")
    assert "without L1H2" in shown and "Ablated: L1H2" in shown and "L5H7" not in shown


def test_a_look_that_a_switch_has_overtaken_draws_nothing(searches: Searches):
    store, ids = searches
    record = store.search(ids["done"])
    assert record.frozen_set is not None
    key = str(store.paired(record.id, Part.DISCOVERY, record.frozen_set)["key"].iloc[0])

    class Slow:
        """A store whose answers come after a head was switched."""

        def __getattr__(self, name: str) -> Any:
            if name == "paired":
                now.head_set, now.serial = HeadSet.parse("L0H0"), now.serial + 1
            return getattr(store, name)

    now = live.View(record, Part.DISCOVERY, record.frozen_set)
    of = handlers(Slow(), Worker(store.path))  # type: ignore[arg-type]
    assert of["pages.live", "picked"](now, event(key=key))[0] == gr.skip() and now.example == key
    assert of["pages.live", "sought"](now, event(words="plus"))[0] == gr.skip() and now.words == "plus"
    now = live.View(record, Part.DISCOVERY, record.frozen_set)
    of = handlers(store, Worker(store.path))
    assert f"ablated: {formats.heads(record.frozen_set)}" in of["pages.live", "picked"](now, event(key=key))[0]
    assert "There is no such example" in of["pages.live", "picked"](now, event(key="forged"))[0] and now.example == key


def test_figures_stay_until_a_new_head_set_has_its_first_outcome(searches: Searches):
    store, ids = searches
    record = store.search(ids["done"])

    class Idle(Worker):
        def live(self, session: str, search: str, part: Part, head_set: HeadSet) -> None:
            pass

    of, session = handlers(store, Idle(store.path)), SimpleNamespace(session_hash="s", query_params={})
    now = live.View(record, Part.DISCOVERY, record.frozen_set or HeadSet())
    shown = of["pages.live", "toggled"](now, session, event(heads=str(record.frozen_set)))
    assert "n = 40" in shown[0]
    counts, strip, *_ = of["pages.live", "toggled"](now, session, event(heads="L0H0,L1H1,L2H2,L3H3"))
    assert counts == gr.skip() and 'aria-valuenow="0"' in strip
    of_the_other_side = of["pages.live", "pressed"](now, session, event(name="held-out"))[0]
    assert "n = 0 of 40" in of_the_other_side


def test_a_store_that_is_held_for_a_while_ends_no_following(searches: Searches, monkeypatch: pytest.MonkeyPatch):
    store, ids = searches
    record = store.search(ids["running"])
    of, session = handlers(store, Worker(store.path)), SimpleNamespace(session_hash="s", query_params={})
    now = live.View(record, Part.DISCOVERY, HeadSet.parse("L0H0"), waiting=True)
    with monkeypatch.context() as held:
        held.setattr(store, "judged", lambda *_: (_ for _ in ()).throw(StoreError("store 'x' is held: wait")))
        shown = of["pages.live", "polled"](now, session)
    assert any("Store &#x27;x&#x27; is held" in str(part) for part in shown)
    assert not any(isinstance(part, gr.Timer) and not part.active for part in shown) and now.waiting
    assert "n = 40" in str(of["pages.live", "polled"](now, session))


def test_a_long_text_of_heads_is_read_whole_or_refused(searches: Searches):
    record = searches[0].search(searches[1]["done"])
    assert str(live.heads_of(record, "L0H1, " * 2000 + "L2H3")) == "L0H1,L2H3"
    with pytest.raises(HeadError, match="100,000 characters at most"):
        live.heads_of(record, "L0H1," * 30_000)
