"""Live heads (``/live?run=ID&heads=L2H0,L2H6``): switch heads off, and see at once which answers change.

A head set's outcomes come from the store; what is not there yet is asked of the worker, which streams it into the store while
this page looks every half second. While the search itself runs, the page looks now and then, and the map takes its colours from
what is known by then. What a session looks at (`View`) is the session's own; what came from the browser is checked.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import pandas as pd

from cel_core.errors import CelError, ConfigError, HeadError, StoreError
from cel_core.heads import Head, HeadSet
from cel_core.records import Part, SearchRecord
from cel_core.search import Tally
from cel_core.store import Store
from cel_core.worker import LiveState, Worker
from pages import examples, explanations, formats, head_grid, inspector, layout, live_counts
from pages.head_grid import Cell
from pages.markup import Markup, is_live, join, notice, tag
from pages.search import find, stamp_of

POLL_S, FOLLOW_S = 0.5, 2.0  # between two looks at a head set's outcomes, and at a search that runs
MAX_KEY, MAX_WORDS, MAX_PROMPT, MAX_SAMPLE = 80, 200, 20_000, 240  # characters
PICK = "window.cel.pickable(element, (key) => trigger('pick', {key}));"
FIND = "window.cel.findable(element, (words) => trigger('find', {words}));"
SWITCH = "watch('value', window.cel.switches(element, (heads) => trigger('toggle', {heads})));"
INSPECT = tag("p", "Pick an example to read its prompt and both answers.", css="sub empty")
KEYS = "Shift-click: a range, or at a number a whole layer or column. Keys: arrows move, space switches."
MAX_HEADS_TEXT = 100_000
NO_HEADS = "none"  # the empty set in an address, where a missing word means the frozen set


@dataclass
class View:
    """What one session looks at."""

    record: SearchRecord | None = None
    part: Part = Part.DISCOVERY
    head_set: HeadSet = HeadSet()
    example: str = ""
    words: str = ""
    shown: Part | None = None  # the side whose figures are drawn
    n_done: int = -1  # outcomes the worker had made at the last look
    settled: bool = False  # whether the last look found everything
    waiting: bool = False  # whether another look is due
    stamp: tuple[object, ...] = ()  # the state of the search that the map shows
    followed_s: float = 0.0  # when the search was last looked at, by the monotonic clock
    serial: int = 0  # goes up with every head set or side asked for; a look that began before has nothing to say any more

    @property
    def search(self) -> SearchRecord:
        """The search looked at.

        Raises:
            StoreError: none is.
        """
        if self.record is None:
            raise StoreError("no search is open here: open one from Searches")
        return self.record

    @property
    def n(self) -> int:
        """Examples on the side looked at."""
        return self.search.n_examples(self.part)

    @property
    def address(self) -> dict[str, str]:
        """The words that open this view again."""
        heads = str(self.head_set) or NO_HEADS
        return {"run": self.search.id, "heads": heads, "part": str(self.part), "example": self.example}


def build(demo: gr.Blocks, store: Store, worker: Worker) -> None:
    """The page's components and events, inside its Blocks."""
    layout.navigation("Live heads")
    with gr.Column(elem_classes="page"):
        top = layout.block(layout.loading("Live heads"))
        with gr.Row(visible=False, elem_classes="body live") as body:
            with gr.Column(scale=0, min_width=0, elem_classes="left"):
                grid = layout.block(css="fill", js=layout.RESTORE + SWITCH)
                looks = layout.block(css="looks")
            with gr.Column(scale=1, elem_classes="right"):
                counts = layout.block()
                strip = layout.block(js=layout.PRESS)
                with gr.Row(elem_classes="lists"):
                    with gr.Column(scale=13, elem_classes="card listcard"):
                        listed = layout.block(js=layout.RESTORE + PICK + FIND)
                    with gr.Column(scale=9, elem_classes="card"):
                        inspected = layout.block(INSPECT, css="inspector")
                        with gr.Column(elem_classes="ask"):
                            asked = gr.Textbox(
                                label="Try a prompt of your own, with and without the heads that are off",
                                lines=2,
                                max_lines=8,
                            )
                            ask = gr.Button("Answer", size="sm", elem_classes="small")
                            answer = layout.block()
    view = gr.State(View())
    timer = gr.Timer(POLL_S, active=False)
    drawn = [counts, strip, listed, inspected, timer, view]

    def draw(now: View, session: str, look_again: bool) -> list[Any]:
        """Everything that a head set changes; asks the worker for what the store lacks."""
        serial, part, head_set, n = now.serial, now.part, now.head_set, now.n
        with store.together():
            compared = examples.compared(store.judged(now.search.id, part, head_set))
            found, open_one = with_texts(store, now, part, head_set, compared)
        record = now.search
        known = len(compared)
        complete, state = known >= n, worker.live_state(session)
        overtaken = serial != now.serial
        if not complete and not overtaken and (not look_again or not (state.running or state.error)):
            try:
                worker.live(session, now.search.id, part, head_set)
                state = LiveState(running=True)
            except CelError as error:
                state = LiveState(error=str(error))
        error = "" if complete else state.error
        loading = worker.state().status == "loading"
        shown: list[Any] = [
            live_counts.counts(compared, head_set, n),
            live_counts.strip(now.address, now.search, part, head_set, known, n, error, loading),
            live_counts.listed(record, compared, found, now.example, now.words, complete),
            show_example(record, open_one, part, head_set),
        ]
        if not known and not error and now.shown is part:  # until there is something to say the figures before stay, greyed out
            shown = [shown[1] if place == 1 else gr.skip() for place in range(len(shown))]
        if serial != now.serial:
            return [gr.skip()] * len(drawn)
        now.shown = part
        now.settled, now.n_done = complete or bool(state.error), state.done
        now.waiting = not (complete or (look_again and now.settled))
        return [*shown, ticking(now), now]

    def opened(request: gr.Request) -> list[Any]:
        page = [top, body, grid, asked]
        try:
            record = find(store, str(request.query_params.get("run", "")))
            if record is None or not record.n_discovery:
                return [show_nothing(record), gr.Row(visible=False), *[gr.skip()] * (len(page) - 2 + len(drawn))]
            now = view_of(record, dict(request.query_params))
            found = draw(now, str(request.session_hash), look_again=False)
            now.stamp, singles = stamp_of(record), store.ranking(record.id, 1)
            head, colours = live_counts.page_head(record, singles), show_map(store, record, now, singles)
            return [head, gr.Row(visible=True), colours, gr.Textbox(placeholder=prompt_like(store, now)), *found]
        except CelError as error:
            return [show_trouble(error), gr.Row(visible=False), *[gr.skip()] * (len(page) - 2 + len(drawn))]

    def toggled(now: View, request: gr.Request, event: gr.EventData) -> list[Any]:
        try:
            now.head_set = heads_of(now.search, layout.told(event, "heads"))
            now.serial += 1
            return draw(now, str(request.session_hash), look_again=False)
        except CelError as error:
            return refused(error)

    def pressed(now: View, request: gr.Request, event: gr.EventData) -> list[Any]:
        try:
            now.part, now.example = part_of(now.search, layout.told(event, "name")), ""
            now.serial += 1
            return draw(now, str(request.session_hash), look_again=False)
        except CelError as error:
            return refused(error)

    def refused(error: CelError) -> list[Any]:
        return [gr.skip(), layout.explained(error), *[gr.skip()] * (len(drawn) - 2)]

    def follow(now: View) -> tuple[list[Any], bool]:
        """Page head and colours where the search has moved since the last look, and whether it froze its set or ended."""
        if not is_live(now.search) or time.monotonic() - now.followed_s < FOLLOW_S:
            return [gr.skip(), gr.skip()], False
        before, now.followed_s = now.search, time.monotonic()
        now.record = store.search(before.id)
        if stamp_of(now.record) == now.stamp:
            return [gr.skip(), gr.skip()], False
        now.stamp, singles = stamp_of(now.record), store.ranking(before.id, 1)
        turned = (now.record.frozen_set, now.record.status) != (before.frozen_set, before.status)
        return [live_counts.page_head(now.record, singles), show_looks(store, now.record, singles)], turned

    def polled(now: View, request: gr.Request) -> list[Any]:
        session = str(request.session_hash)
        state = worker.live_state(session)
        try:
            followed, turned = follow(now)
            news = now.waiting and (now.settled or not state.running or state.done != now.n_done)
            if news or turned:
                return [*followed, *draw(now, session, look_again=True)]
            clock = gr.skip() if now.waiting or is_live(now.search) else ticking(now)
            return [*followed, *[gr.skip()] * (len(drawn) - 2), clock, now]
        except CelError as error:
            now.waiting, now.n_done = True, -1  # the next look draws all again, if it can
            shown = {strip: layout.explained(error), view: now}
            return [shown.get(component, gr.skip()) for component in (top, looks, *drawn)]

    # a head switched while one of these looks is drawn by `toggled`, which sees the example and the words that are set first
    def picked(now: View, event: gr.EventData) -> tuple[Any, View]:
        before, now.example = now.example, layout.told(event, "key")[:MAX_KEY]
        serial, part, head_set, key = now.serial, now.part, now.head_set, now.example
        try:
            record = now.search
            found = examples.pick(store.paired(record.id, part, head_set, [], key), key)
        except CelError as error:
            return layout.explained(error), now
        if found is None:
            now.example = before
            return notice("There is no such example on this side", "Pick one from the list.", css="bad"), now
        return gr.skip() if serial != now.serial else show_example(record, found, part, head_set), now

    def sought(now: View, event: gr.EventData) -> tuple[Any, View]:
        now.words = layout.told(event, "words")[:MAX_WORDS]
        serial, part, head_set = now.serial, now.part, now.head_set
        try:
            with store.together():
                compared = examples.compared(store.judged(now.search.id, part, head_set))
                found, _ = with_texts(store, now, part, head_set, compared)
        except CelError as error:
            return layout.explained(error), now
        drawn = live_counts.listed(now.search, compared, found, now.example, now.words, now.settled)
        return gr.skip() if serial != now.serial else drawn, now

    def answered(now: View, text: str) -> Markup:
        head_set = now.head_set  # others may be off by the time the model has written
        try:
            return live_counts.side_by_side(*worker.answer(now.search.id, prompt_of(text), head_set), head_set)
        except CelError as error:
            return layout.explained(error)

    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
    newest = quiet | {"trigger_mode": "always_last"}
    demo.load(opened, outputs=[top, body, grid, asked, *drawn], **quiet)
    grid.toggle(toggled, inputs=view, outputs=drawn, trigger_mode="multiple", **quiet)
    strip.press(pressed, inputs=view, outputs=drawn, trigger_mode="multiple", **quiet)
    timer.tick(polled, inputs=view, outputs=[top, looks, *drawn], **quiet)
    listed.pick(picked, inputs=view, outputs=[inspected, view], **newest)
    listed.find(sought, inputs=view, outputs=[listed, view], **newest)
    ask.click(lambda: live_counts.WRITING, outputs=answer, **quiet).then(
        answered, inputs=[view, asked], outputs=answer, **quiet
    )


def view_of(record: SearchRecord, words: Mapping[str, Any]) -> View:
    """The view that an address asks for; where it names no heads, the frozen set's.

    Raises:
        CelError: a head that the model does not have, or a side that is not there.
    """
    asked = str(words.get("heads", ""))
    head_set = heads_of(record, asked) if asked else record.frozen_set or HeadSet()
    side = str(words.get("part", "")) or (Part.HELD_OUT if record.frozen_set else Part.DISCOVERY)
    return View(record, part_of(record, side), head_set, str(words.get("example", ""))[:MAX_KEY])


def heads_of(record: SearchRecord, text: str) -> HeadSet:
    """A head set as the browser sent it.

    Raises:
        HeadError: it cannot be read, or a head is not in the model.
    """
    if text.strip().lower() == NO_HEADS:
        return HeadSet()
    if len(text) > MAX_HEADS_TEXT:  # never cut: what remained would be another set
        raise HeadError(f"the heads take {len(text):,} characters: give each once, {MAX_HEADS_TEXT:,} characters at most")
    return HeadSet.parse(text).within(record.model["n_layers"], record.model["n_heads"])


def part_of(record: SearchRecord, text: str) -> Part:
    """A side as the browser sent it.

    Raises:
        CelError: there is no such side, or it is sealed.
    """
    if text not in tuple(Part):
        raise ConfigError(f"{text[:40]!a} is no side of a search: choose {' or '.join(Part)}")
    if text == Part.HELD_OUT and record.frozen_set is None:
        raise StoreError(f"search {record.id}: its held-out examples are sealed until a set is frozen; choose discovery")
    return Part(text)


def with_texts(
    store: Store, now: View, part: Part, head_set: HeadSet, compared: pd.DataFrame
) -> tuple[pd.DataFrame, Any | None]:
    """The examples to list, and the one that is open, if any: texts are read for what is drawn, unless words are sought.

    Args:
        store: the store.
        now: what words are sought, and which example is open.
        part: the side looked at.
        head_set: the heads that are off.
        compared: all examples known of these, without texts.
    """
    if now.words:
        found = examples.compared(store.paired(now.search.id, part, head_set))
        return examples.matching(found, now.words), examples.pick(found, now.example)
    positions = live_counts.first_of_each(compared)
    found = examples.compared(store.paired(now.search.id, part, head_set, positions, now.example))
    return found, examples.pick(found, now.example)


def prompt_like(store: Store, now: View) -> str:
    """How a prompt of this task looks: the first example's, of a long one the end."""
    first = store.paired(now.search.id, now.part, HeadSet(), [0])
    context = str(first["context"].iloc[0]).strip() if len(first) else ""
    return context if len(context) <= MAX_SAMPLE else f"…{context[-MAX_SAMPLE:]}"


def prompt_of(text: object) -> str:
    """A prompt of the user's own.

    Raises:
        ConfigError: it is empty or too long.
    """
    found = str(text or "")
    if not found.strip():
        raise ConfigError("the prompt is empty: type a text for the model to go on with")
    if len(found) > MAX_PROMPT:
        raise ConfigError(f"the prompt has {len(found):,} characters: give at most {MAX_PROMPT:,}")
    return found


def show_example(record: SearchRecord, example: Any | None, part: Part, head_set: HeadSet) -> Markup:
    """The example that is open, if any."""
    if example is None:
        return INSPECT
    return inspector.show(record, example, part, head_set, explanations.place(record, example.key, head_set))


def ticking(now: View) -> gr.Timer:
    """The page's clock: it runs while outcomes of this head set are on their way, and slower while the search runs."""
    return gr.Timer(POLL_S if now.waiting else FOLLOW_S, active=now.waiting or is_live(now.search))


def known_of(store: Store, record: SearchRecord, singles: Sequence[Tally]) -> tuple[Mapping[Head, Cell], str]:
    """The map's cells, and what the number of a hatched one is."""
    if singles:
        return head_grid.of_ranking(singles), head_grid.AT_MOST
    return head_grid.of_tallies(store.tallies(record.id, Part.DISCOVERY), record.n_discovery), head_grid.SO_FAR


def show_looks(store: Store, record: SearchRecord, singles: Sequence[Tally]) -> Markup:
    """New colours for the switches that are there."""
    cells, hatching = known_of(store, record, singles)
    shape = record.model["n_layers"], record.model["n_heads"]
    return head_grid.looks(*shape, cells, record.frozen_set or HeadSet(), hatching)


def show_map(store: Store, record: SearchRecord, now: View, singles: Sequence[Tally]) -> Markup:
    """The head map as switches, in its card."""
    cells, hatching = known_of(store, record, singles)
    shape = record.model["n_layers"], record.model["n_heads"]
    drawn = head_grid.switches(*shape, cells, record.frozen_set or HeadSet(), now.head_set, hatching)
    said = f"Discovery gain without each head, n = {formats.count(record.n_discovery)}. Click to switch a head off."
    return tag("div", tag("div", said, css="k above"), drawn, tag("div", KEYS, css="sub below hint"), css="card mapcard")


def show_nothing(record: SearchRecord | None) -> Markup:
    """What stands here without a search, or before its model is loaded."""
    link = tag("a", "Searches", href="/" if record is None else f"/search?run={record.id}")
    if record is None:
        return tag(
            "div", layout.page_head("Live heads"), notice("No searches yet", join(["Begin one at ", link, "."])), css="stack"
        )
    said = "Heads can be switched once the search has loaded its model and drawn its examples."
    return tag("div", layout.page_head("Live heads"), notice(f"Search {record.id} has not begun", said), css="stack")


def show_trouble(error: CelError) -> Markup:
    """An address that cannot be opened."""
    link = tag("a", "Searches", href="/")
    return tag("div", layout.page_head("Live heads", link), layout.explained(error), css="stack")
