"""What the Search and Searches pages ask of the store, and what they say."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cel_core import owner, printing
from cel_core import search as algorithm
from cel_core.errors import StoreError
from cel_core.records import Part, Status
from cel_core.search import pool_of
from cel_core.store import Store
from cel_core.worker import Worker
from pages import downloads, evidence, figures, headline, pace, plan, rankings, search
from pages import searches as searches_page
from tests.pages import made_up
from tests.pages.conftest import handlers

Searches = tuple[Store, dict[str, str]]


class Watched:
    """A store that notes which sides of which searches are asked about."""

    def __init__(self, store: Store) -> None:
        self.store, self.asked = store, list[Part]()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        def noted(*arguments: Any) -> Any:
            self.asked += [argument for argument in arguments if isinstance(argument, Part)]
            return method(*arguments)

        return noted


@pytest.mark.parametrize("state", ["running", "loading", "stopped", "failed"])
def test_held_out_examples_are_not_asked_for_before_the_freeze(searches: Searches, state: str):
    store, ids = searches
    watched = Watched(store)
    found = search.gather(watched, store.search(ids[state]))  # type: ignore[arg-type]
    assert Part.HELD_OUT not in watched.asked
    assert found.paired is None
    shown = search.show_flips(found.record, None, "") + evidence.show(found.record, None)
    assert "once the frozen set has been compared on the held-out examples" in shown


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("running", "Held-out examples stay sealed until the set is frozen."),
        ("loading", "Loading the model and the rows"),
        ("stopped", "1,000 of 1,960 evaluations"),
        ("failed", "Check the name, or give a local folder"),
        ("none", "The pool held no beneficial set"),
        ("done", "95 % interval"),
    ],
)
def test_every_state_says_what_it_is(searches: Searches, state: str, said: str):
    store, ids = searches
    found = search.gather(store, store.search(ids[state]))
    assert said in search.show_top(found, None)
    assert str(found.record.status) in search.show_top(found, None)


def test_the_map_fills_in_from_tallies_while_the_search_runs(searches: Searches):
    store, ids = searches
    found = search.gather(store, store.search(ids["running"]))
    assert (len(found.cells), found.singles) == (24, [])
    assert "24 of 48 heads measured in full" in search.show_map(found)
    assert "Not final" in rankings.so_far(found.cells)


def test_an_interrupted_search_says_that_its_process_is_gone(store: Store, monkeypatch: pytest.MonkeyPatch):
    running = made_up.halfway(store)
    monkeypatch.setattr(owner, "is_alive", lambda *_: False)
    record = store.search(running.id)
    assert record.status is Status.INTERRUPTED
    assert "the process that ran it is gone" in headline.state(record, None)
    assert f"--resume {record.id}" in headline.state(record, None)


def test_time_left_follows_the_pace_since_the_stage_was_first_seen(store: Store, monkeypatch: pytest.MonkeyPatch):
    running = made_up.MadeUpSearch(store, made_up.Story()).plan()
    now = [100.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    seen = pace.Pace()
    store.progress(running.id, "stage 1 of 2", 100, 500, 1.0)
    assert seen.left_s(store.search(running.id)) is None
    now[0] += 10
    store.progress(running.id, "stage 1 of 2", 200, 500, 11.0)
    assert seen.left_s(store.search(running.id)) == pytest.approx(30)
    store.progress(running.id, "stage 2 of 2", 0, 400, 12.0)
    assert seen.left_s(store.search(running.id)) is None


def test_dropped_heads_are_ranked_with_their_bounds(searches: Searches):
    store, ids = searches
    found = search.gather(store, store.search(ids["large"]))
    inexact = [tally for tally in found.singles if not tally.exact]
    assert inexact and rankings.singles(found.record, found.singles).count("≥ ") == len(inexact)


def test_pages_of_no_search_and_of_an_unknown_one(store: Store):
    assert search.find(store, "") is None
    assert "No searches yet" in searches_page.show([])
    with pytest.raises(StoreError):
        search.find(store, "<b>")


def test_the_newest_search_is_opened_where_none_is_named(searches: Searches):
    store, ids = searches
    newest = search.find(store, "")
    assert newest is not None and newest.id == store.searches()[0].id
    assert search.find(store, ids["done"]).id == ids["done"]  # type: ignore[union-attr]


def test_the_list_has_a_row_for_every_search(searches: Searches):
    store, ids = searches
    shown = searches_page.show(store.searches())
    for found in ids.values():
        assert shown.count(f'data-href="/search?run={found}"') == 1
    assert shown.count("no beneficial set") == 1


def test_the_command_that_runs_it_again_parses_to_the_same_plan():
    config = made_up.Story(model="a model; rm -rf x", full=True).config
    assert headline.command_of(config) == (
        "python -m cel_core search --model 'a model; rm -rf x' --task arithmetic --discovery 40 --held-out 40 --p 5 --k 3 "
        "--seed 0 --full-sweep"
    )


def test_downloads_are_the_tables_and_keep_the_seal(searches: Searches):
    store, ids = searches
    singles = downloads.frame_of(store, ids["done"], "singles")
    assert (len(singles), singles["rank"].tolist()[:2]) == (48, [1, 2])
    assert singles["exact"].dtype == bool
    assert len(downloads.frame_of(store, ids["done"], "subsets")) == 25
    record = store.search(ids["done"])
    held_out = downloads.frame_of(store, record.id, "held-out")
    assert record.held_out is not None
    assert int((held_out["ablated_correct"] & ~held_out["intact_correct"]).sum()) == record.held_out.fixes
    for state, name in (("running", "held-out"), ("running", "discovery"), ("done", "../../etc/passwd")):
        with pytest.raises(StoreError):
            downloads.frame_of(store, ids[state], name)


def test_figures_hold_the_numbers_of_the_record(searches: Searches):
    store, ids = searches
    found = search.gather(store, store.search(ids["done"]))
    record = found.record
    assert record.held_out is not None
    drawn = figures.discovery_against_held_out(record, found.subsets).to_dict()
    rows = [row for rows in drawn["datasets"].values() for row in rows if "held_out" in row and "heads" in row]
    assert [row["held_out"] for row in rows] == [100 * record.held_out.gain]
    ranked = figures.ranked_singles(found.singles, record.config.p).to_dict()
    points = [row for rows in ranked["datasets"].values() for row in rows if "rank" in row]
    assert [row["points"] for row in points] == [100 * tally.gain for tally in found.singles]
    pool = {str(head) for head in pool_of(found.singles, record.config.p)}
    assert {row["head"] for row in points if row["colour"] == figures.GAIN} == pool


def test_the_figure_of_both_sides_stands_with_the_frozen_set_alone(searches: Searches):
    store, ids = searches
    found = search.gather(store, store.search(ids["done"]))
    drawn = figures.discovery_against_held_out(found.record, found.subsets[:1]).to_dict()
    assert [row["heads"] for rows in drawn["datasets"].values() for row in rows if "heads" in row] == ["L2H5, L3H0, L4H4"]


def test_what_can_be_done_follows_from_the_state(searches: Searches):
    store, ids = searches
    shown = {state: search.actions(store.search(found), stopping=False) for state, found in ids.items()}
    assert 'data-press="stop"' in shown["running"] and 'data-press="stop"' in shown["loading"]
    assert all('data-press="resume"' in shown[state] for state in ("stopped", "failed"))
    assert "data-press" not in shown["done"] and f"/live?run={ids['done']}" in shown["done"]
    assert "/live" not in shown["loading"] and "/live" not in shown["failed"]  # no examples yet
    assert " disabled" in search.actions(store.search(ids["running"]), stopping=True)


def test_a_search_of_another_program_is_not_stopped_from_here(searches: Searches, tmp_path: Path):
    store, ids = searches
    worker = Worker(tmp_path / "cel.duckdb")
    with pytest.raises(StoreError, match="is run by another program"):
        search.stop(worker, store.search(ids["running"]))
    with pytest.raises(StoreError, match="is done: only a queued or running one"):
        search.stop(worker, store.search(ids["done"]))


def test_a_queued_search_says_that_it_waits(store: Store):
    waiting = store.create_search(made_up.Story().config, {}, Status.QUEUED)
    assert "as soon as the worker is free" in headline.state(store.search(waiting), None)


def test_an_approximate_screen_says_so_wherever_it_is_shown(searches: Searches):
    store, ids = searches
    exact = store.search(ids["done"])
    approximate = dataclasses.replace(exact, config=dataclasses.replace(exact.config, shortlist=20))
    said = "approximate screen: only the 20 heads of 48 that attribution promised most of"
    for shown in (headline.page_head(approximate), plan.show_plan(approximate), printing.search_report(approximate, [], [])):
        assert said in shown
    assert "approximate" not in headline.page_head(exact) + printing.search_report(exact, [], [])
    assert "--screen attribution --shortlist 20" in headline.command_of(approximate.config)


def test_within_a_phase_only_the_progress_is_drawn_again(store: Store):
    made = made_up.MadeUpSearch(store, made_up.Story()).plan()
    polled = handlers(store, Worker(store.path))["pages.search", "polled"]

    def drawn(seen: search.Seen) -> int:
        return sum(
            not (isinstance(part, dict) and part.get("__type__") == "update" and len(part) == 1) for part in polled(seen)
        )

    seen = search.Seen(made.id)
    store.progress(made.id, "stage 1 of 2", 8, 100, 1.0)
    assert drawn(seen) > 15
    store.progress(made.id, "stage 1 of 2", 16, 100, 1.0)
    assert drawn(seen) == 2  # the map was drawn a moment ago
    assert drawn(seen) == 0
    seen.drawn_s -= search.REDRAW_S
    assert drawn(seen) > 15 and drawn(seen) == 0  # it catches up, though the search has not moved since
    n = made.story.n_discovery
    store.save_ranking(made.id, 1, algorithm.screen(made.heads, made.story.p, range(n), made._correct))
    store.progress(made.id, "stage 2 of 2", 0, 100, 1.0)
    assert drawn(seen) > 15  # the ranking is new
    assert drawn(seen) == 0
    store.progress(made.id, "stage 2 of 2", 50, 100, 2.0)
    assert drawn(seen) == 2  # the top, and what the session has seen
    store.progress(made.id, "held-out", 0, 80, 3.0)
    assert drawn(seen) > 15


def test_the_steps_in_words_have_the_plans_sizes(searches: Searches):
    store, ids = searches
    said = plan.in_words(store.search(ids["large"]))
    assert "Each of the 576 heads ablated alone on 80 discovery examples, or on as many as show that it is not" in said
    assert "The 10 best are the pool." in said
    assert "All 175 subsets of 1 to 3 heads of the pool" in said and "Only then 200 other examples" in said
    record = store.search(ids["large"])
    config = dataclasses.replace(record.config, shortlist=50, kinds=("2da", "2ds"))
    said = plan.in_words(dataclasses.replace(record, config=config))
    assert "Only the 50 heads of 576 that attribution promised most of ablated alone" in said and "Kinds: 2da, 2ds." in said
