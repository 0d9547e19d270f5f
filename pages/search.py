"""Search (``/search?run=ID``): one search, while it runs and after.

The page asks the store for everything; while the search runs it looks again every second, and draws only what changed. Held-out
examples are not asked for before a set is frozen.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gradio as gr
import pandas as pd

from cel_core.errors import CelError, StoreError
from cel_core.heads import Head, HeadSet
from cel_core.records import Part, SearchRecord, Status
from cel_core.search import Tally
from cel_core.store import Store
from cel_core.worker import Worker
from pages import (
    downloads,
    evidence,
    examples,
    explanations,
    figures,
    formats,
    head_grid,
    headline,
    inspector,
    layout,
    rankings,
)
from pages.head_grid import Cell
from pages.markup import Markup, button, filter_box, is_live, join, notice, tag
from pages.pace import Pace
from pages.plan import in_words, show_plan

REDRAW_S = 3.0  # between two drawings of a head map that fills in: it takes a tenth of a second, in every tab
POLL_S, IDLE_S = 1.0, 5.0  # between two looks at a search that moves, and at one that might again
PICK = layout.RESTORE + "window.cel.pickable(element, (key) => trigger('pick', {key}));"
TESTED = "Line: 95 % interval. Ticks: discovery gains of other subsets, as far as measured in full."
INSPECT = tag("p", "Pick a flip to read its prompt and both answers.", css="sub empty")


@dataclass
class Seen:
    """What a session's page shows: the search, its last state, its pace, and whether Stop was pressed."""

    search: str = ""
    stamp: tuple[object, ...] = ()
    phase: tuple[object, ...] = ()  # what is drawn below the top belongs to it,
    ranked: bool = False  # is final where its rankings are there,
    drawn_s: float = 0.0  # is of this moment, by the monotonic clock,
    behind: bool = False  # and is not of the last state
    pace: Pace = field(default_factory=Pace)
    stopping: bool = False
    refused: Markup = Markup()  # why the last button did nothing


class Found(NamedTuple):
    """All that the page shows of one search."""

    record: SearchRecord
    singles: list[Tally]
    subsets: list[Tally]
    cells: Mapping[Head, Cell]
    paired: pd.DataFrame | None  # held-out outcomes, intact and without the frozen set


def build(demo: gr.Blocks, store: Store, worker: Worker) -> None:
    """The page's components and events, inside its Blocks."""
    layout.navigation("Search")
    with gr.Column(elem_classes="page"):
        top = layout.block(layout.loading("Search"), js=layout.PRESS)
        with gr.Row(visible=False, elem_classes="body") as body:
            with gr.Column(scale=0, min_width=0, elem_classes="left"):
                grid = layout.block(css="fill")
            with gr.Column(scale=1, elem_classes="right"):
                with gr.Tabs(elem_classes="card tabs") as tabs:
                    with gr.Tab("Single heads", id="singles"):
                        singles = layout.block()
                    with gr.Tab("Subsets", id="subsets") as subsets_tab:
                        subsets = layout.block()
                    with gr.Tab("Flips", id="flips") as flips_tab, gr.Row(elem_classes="split"):
                        with gr.Column(scale=3):
                            flips = layout.block(js=PICK)
                        with gr.Column(scale=2):
                            inspected = layout.block(INSPECT, css="inspector")
                    with gr.Tab("Evidence", id="evidence"):
                        proof = layout.block()
                    with gr.Tab("Plan", id="plan"):
                        plan = layout.block()
                with gr.Row(visible=False) as plots:
                    with gr.Column(elem_classes="card plot", min_width=320):
                        sides_head = layout.block()
                        sides = gr.Plot(show_label=False, container=False)
                    with gr.Column(elem_classes="card plot", min_width=320):
                        ranks_head = layout.block()
                        ranks = gr.Plot(show_label=False, container=False)
    seen = gr.State(Seen())
    timer = gr.Timer(POLL_S, active=False)
    drawn = [top, body, grid, tabs, singles, subsets_tab, subsets, flips_tab, flips, inspected, proof, plan]
    drawn += [plots, sides_head, sides, ranks_head, ranks, timer, seen]

    def render(found: Found, before: Seen, example: str = "", opening: bool = False, polling: bool = False) -> list[Any]:
        record = found.record
        before.stopping = before.stopping and is_live(record)
        if polling and phase_of(record) != before.phase:
            before.refused = Markup()  # it spoke of a state that is past
        before.phase, before.ranked = phase_of(record), bool(found.singles)
        before.drawn_s, before.behind = time.monotonic(), False
        changed = None if found.paired is None else examples.flips(found.paired)
        picked = None if found.paired is None else examples.pick(found.paired, example)
        at_rest = bool(found.singles) and not is_live(record)  # figures wait: six tabs that draw them at once stall a search
        n_flips = "" if changed is None else f" {formats.count(len(changed))}"
        shown = {
            top: show_top(found, before.pace.left_s(record), actions(record, before.stopping), before.refused),
            body: gr.Row(visible=bool(record.model)),
            grid: show_map(found),
            tabs: gr.Tabs(selected="flips" if picked is not None else "singles") if opening else gr.skip(),
            singles: rankings.singles(record, found.singles) if found.singles else rankings.so_far(found.cells),
            subsets_tab: gr.Tab(f"Subsets {formats.count(len(found.subsets))}" if found.subsets else "Subsets"),
            subsets: rankings.subsets(record, found.subsets),
            flips_tab: gr.Tab(f"Flips{n_flips}"),
            flips: show_flips(record, changed, example),
            inspected: INSPECT if picked is None else show_example(record, picked),
            proof: evidence.show(record, found.paired),
            plan: show_plan(record),
            plots: gr.Row(visible=at_rest),
            sides_head: _plot_head("Discovery against held-out gain", record.id, "subsets", TESTED),
            sides: figures.discovery_against_held_out(record, found.subsets) if record.held_out else None,
            ranks_head: _plot_head("Single heads, ranked", record.id, "singles", ranked_says(found.singles)),
            ranks: figures.ranked_singles(found.singles, record.config.p) if at_rest else None,
            timer: gr.Timer(POLL_S if is_live(record) else IDLE_S, active=record.status is not Status.DONE),
            seen: before,
        }
        return [layout.plotted(shown[c]) if c in (sides, ranks) else shown[c] for c in drawn]

    def moved(record: SearchRecord, before: Seen) -> list[Any]:
        """A search that went on within a phase: its progress alone is drawn."""
        found = Found(record, [], [], {}, None)
        page = show_top(found, before.pace.left_s(record), actions(record, before.stopping), before.refused)
        return [{top: page, seen: before}.get(component, gr.skip()) for component in drawn]

    def nothing(page: Markup, before: Seen) -> list[Any]:
        shown = {top: page, body: gr.Row(visible=False), timer: gr.Timer(active=False), seen: before}
        return [shown.get(component, gr.skip()) for component in drawn]

    def opened(request: gr.Request) -> list[Any]:
        asked = {str(key): str(value) for key, value in dict(request.query_params).items()}
        fresh = Seen()
        try:
            record = find(store, asked.get("run", ""))
            if record is None:
                return nothing(_no_search(), fresh)
            fresh.search, fresh.stamp = record.id, stamp_of(record)
            return render(gather(store, record), fresh, asked.get("example", ""), opening=True)
        except CelError as error:
            return nothing(_troubled(error), fresh)

    def polled(before: Seen) -> list[Any]:
        try:
            record = store.search(before.search)
            due = time.monotonic() - before.drawn_s >= REDRAW_S
            if stamp_of(record) == before.stamp and not (before.behind and due):
                return [gr.skip()] * len(drawn)
            before.stamp = stamp_of(record)
            if is_live(record) and phase_of(record) == before.phase and (before.ranked or not due):
                before.behind = not before.ranked
                return moved(record, before)
            return render(gather(store, record), before, polling=True)
        except CelError as error:  # perhaps for a while: the page goes on looking, and then draws all again
            before.stamp = before.phase = ()
            return [{top: _troubled(error), seen: before}.get(component, gr.skip()) for component in drawn]

    def pressed(before: Seen, event: gr.EventData) -> list[Any]:
        name, before.refused, before.stopping = layout.told(event, "name"), Markup(), False
        try:
            record = store.search(before.search)
            try:
                if name == "stop":
                    stop(worker, record)
                elif name == "resume":
                    worker.resume(record.id)
                before.stopping = name == "stop"
            except CelError as error:
                before.refused = layout.explained(error)
            record = store.search(record.id)
            before.stamp = stamp_of(record)
            return render(gather(store, record), before)
        except CelError as error:
            return nothing(_troubled(error), before)

    def picked(before: Seen, event: gr.EventData) -> Markup:
        try:
            record = store.search(before.search)
            if record.frozen_set is None:
                return INSPECT
            key = layout.told(event, "key")
            example = examples.pick(store.paired(record.id, Part.HELD_OUT, record.frozen_set, [], key), key)
        except CelError as error:
            return layout.explained(error)
        if example is None:
            return notice("There is no such example in this search", "Reload the page to see what it holds.", css="bad")
        return show_example(record, example)

    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
    demo.load(opened, outputs=drawn, **quiet)
    timer.tick(polled, inputs=seen, outputs=drawn, **quiet)
    top.press(pressed, inputs=seen, outputs=drawn, **quiet)
    flips.pick(picked, inputs=seen, outputs=inspected, trigger_mode="always_last", **quiet)


def find(store: Store, run: str) -> SearchRecord | None:
    """The search an address asks for: the newest where it names none; None in an empty store.

    Raises:
        StoreError: there is no search of that id.
    """
    if run:
        return store.search(run)
    return next(iter(store.searches()), None)


def gather(store: Store, record: SearchRecord) -> Found:
    """Everything the page shows of a search; held-out outcomes only once its set is frozen."""
    singles = store.ranking(record.id, 1) if record.n_discovery else []
    subsets = store.ranking(record.id, 2) if singles else []
    if singles or not record.n_discovery:
        cells = head_grid.of_ranking(singles)
    else:
        cells = head_grid.of_tallies(store.tallies(record.id, Part.DISCOVERY), record.n_discovery)
    paired = store.paired(record.id, Part.HELD_OUT, record.frozen_set) if record.frozen_set and record.held_out else None
    return Found(record, singles, subsets, cells, paired)


def stop(worker: Worker, record: SearchRecord) -> None:
    """Stop a search that this dashboard's worker runs, or has in line.

    Raises:
        StoreError: another program runs it, or nobody does.
    """
    if not is_live(record):
        raise StoreError(f"search {record.id} is {record.status}: only a queued or running one can be stopped")
    if record.status is Status.RUNNING and worker.state().search != record.id:
        raise StoreError(f"search {record.id} is run by another program, such as a command line: stop it there with Ctrl-C")
    worker.stop(record.id)


def actions(record: SearchRecord, stopping: bool) -> Markup:
    """What can be done with a search in its present state."""
    tip = "One file with all of this search, for another dashboard to import"
    parts = [tag("a", "Export", css="btn", href=f"/bundles/{record.id}.zip", download=True, title=tip)]
    if record.n_discovery:
        parts.append(tag("a", "Open live", css="btn", href=f"/live?run={record.id}", data_keep_run=True))
    if is_live(record):
        parts.append(button("Stopping" if stopping else "Stop", "stop", disabled=stopping))
    elif record.status is not Status.DONE:
        parts.append(button("Resume", "resume", css="btn primary"))
    return join(parts)


def stamp_of(record: SearchRecord) -> tuple[object, ...]:
    """What of a search changes when the page has to be drawn again."""
    return record.status, record.stage, record.done, record.total, record.frozen_set, record.held_out is None


def phase_of(record: SearchRecord) -> tuple[object, ...]:
    """What of a search changes when its rankings do."""
    return record.status, record.stage, record.frozen_set


def show_top(found: Found, left_s: float | None, actions: object = "", refused: object = "") -> Markup:
    """Title, why the last button did nothing, state and headline."""
    record = found.record
    balance = [] if found.paired is None else examples.answer_balance(found.paired)
    notes = tag("div", *(tag("div", f"Note: {note}") for note in record.notes), css="sub") if record.notes else ""
    parts = [headline.page_head(record, actions), headline.state(record, left_s), headline.figures(record, balance), notes]
    parts.insert(1, refused)
    address = f'{{"run": "{record.id}"}}'
    return tag("div", *filter(None, parts), css="stack", data_address=address)


def show_map(found: Found) -> Markup:
    """The head map in its card, and the steps of the search in words."""
    record = found.record
    if not record.n_heads:
        return Markup()
    hatching = head_grid.AT_MOST if found.singles else head_grid.SO_FAR
    marked = record.frozen_set or HeadSet()
    shape = record.model["n_layers"], record.model["n_heads"]
    title = tag("div", f"Discovery gain without each head, n = {formats.count(record.n_discovery)}", css="k")
    in_full = sum(not cell.partial for cell in found.cells.values())
    known = "" if found.singles else tag("div", f"{in_full} of {record.n_screened} heads measured in full", css="sub below")
    drawn = head_grid.picture(*shape, found.cells, marked, hatching)
    return join([tag("div", title, drawn, known, css="card mapcard"), in_words(record)])


def show_flips(record: SearchRecord, changed: pd.DataFrame | None, selected: str) -> Markup:
    """The held-out examples whose correctness changed."""
    if changed is None:
        return _not_yet("Flips are shown once the frozen set has been compared on the held-out examples.")
    names = (("", "All", len(changed)), ("fix", "Fixes", None), ("harm", "Harms", None))
    buttons = [
        tag(
            "button",
            f"{name} {formats.count(int((changed['flip'] == group).sum()) if n is None else n)}",
            type="button",
            data_group_of="flips",
            data_group=group,
            aria_pressed="true" if not group else "false",
        )
        for group, name, n in names
    ]
    end = tag("span", downloads.links(record.id, Part.HELD_OUT), css="end")
    tools = tag("div", tag("span", *buttons, css="segments"), filter_box("flips", "Search"), end, css="tools")
    return join([tools, tag("div", examples.flips_table(record, changed, "flips", selected), css="tall")])


def ranked_says(singles: Sequence[Tally]) -> str:
    """What the marks of the ranking's figure are."""
    early = " Faint: dropped early, drawn at the most it could still gain." if any(not t.exact for t in singles) else ""
    return f"Blue: the pool.{early}"


def show_example(record: SearchRecord, example: Any) -> Markup:
    """One held-out example, intact and without the frozen set; Live goes on from it."""
    frozen = record.frozen_set or HeadSet()
    link = tag("a", "Open it live", href=f"/live?run={record.id}&example={example.key}", css="csv")
    more = [
        explanations.place(record, example.key, frozen, at_once=False),
        tag("p", link, ", to switch heads one by one", css="sub"),
    ]
    return inspector.show(record, example, Part.HELD_OUT, frozen, join(more))


def _plot_head(title: str, search: str, name: str, note: str) -> Markup:
    end = tag("span", downloads.links(search, name), css="end")
    return join([tag("div", tag("span", title, css="k"), end, css="tools bare"), tag("div", note, css="sub note")])


def _not_yet(text: str) -> Markup:
    return tag("p", text, css="sub empty")


def _troubled(error: CelError) -> Markup:
    link = tag("a", "Searches", href="/")
    return tag("div", layout.page_head("Search", join(["All of them: ", link])), layout.explained(error), css="stack")


def _no_search() -> Markup:
    link = tag("a", "Searches", href="/")
    text = join(["Begin one at ", link, ", and it appears here while it runs."])
    return tag("div", layout.page_head("Search"), notice("No searches yet", text), css="stack")
