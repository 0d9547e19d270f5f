"""Searches (``/``): every search in the store, newest first; one that was exported elsewhere is imported here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from cel_core import bundle_reading
from cel_core.bundle import Kept
from cel_core.config import DEMO
from cel_core.errors import CelError
from cel_core.records import SearchRecord, Status
from cel_core.store import Store
from cel_core.tasks import TASKS
from cel_core.worker import Worker
from pages import formats, layout, new_search
from pages.markup import (
    Column,
    Markup,
    Row,
    button,
    command,
    filter_box,
    head_chips,
    is_live,
    join,
    notice,
    progress,
    signed,
    status_chip,
    table,
    tag,
)

BUSY_S, IDLE_S = 2.0, 10.0  # between two looks at the store
# the button in the page's head presses the hidden one of the component that uploads
UPLOAD = """element.addEventListener("click", (e) => {
  if (e.target.closest("[data-upload]")) document.querySelector("#import-search").click();
});"""
QUESTION = "Capability Enhancement Localization: which few attention heads, once removed, make this model better at this task?"
READING = join([tag("div", "Reading the file.", css="k"), tag("div", tag("i"), css="prog unknown")])
COLUMNS = (
    Column("Status"),
    Column("Model"),
    Column("Task"),
    Column("Held-out n", "n", "Examples that took no part in choosing the heads; the figures at the right are of these."),
    Column("Accuracy, %", "n", "Of the whole model, and without the frozen heads."),
    Column("Gain, points", "n", "Fixes less harms, in hundredths of the examples."),
    Column("95 % interval", "n", "Of the gain, in points (Bonett and Price, 2012)."),
    Column("Fixes", "n", "Wrong with the whole model, right without the heads."),
    Column("Harms", "n", "Right with the whole model, wrong without the heads."),
    Column("Frozen heads", tip="The set that the search chose on its discovery examples."),
    Column("Age", "n"),
)


def build(demo: gr.Blocks, store: Store, worker: Worker) -> None:
    """The page's components and events, inside its Blocks."""
    layout.navigation("Searches")
    with gr.Column(elem_classes="page"):
        head = layout.block(layout.loading("Searches"), js=layout.PRESS + UPLOAD)
        form = new_search.build(worker)
        message = layout.block(css="message")
        rows = layout.block(js=layout.PRESS)
        upload = gr.UploadButton("Import", elem_id="import-search", visible="hidden")
    timer = gr.Timer(IDLE_S)
    is_open = gr.State(False)

    def look() -> tuple[Markup, Markup, gr.Timer]:
        try:
            records = store.searches()
        except CelError as error:
            return layout.page_head("Searches"), layout.explained(error), gr.Timer(IDLE_S)
        return show_head(records), show(records), gr.Timer(BUSY_S if any(map(is_live, records)) else IDLE_S)

    def pressed(opened: bool, event: gr.EventData) -> tuple[Any, Any, bool]:
        name = layout.told(event, "name")
        if name == "demo":
            try:
                return gr.skip(), layout.goto(f"/search?run={worker.launch(DEMO)}"), opened
            except CelError as error:
                return gr.skip(), layout.explained(error), opened
        opened = not opened if name == "new" else opened
        return gr.Column(visible=opened), "", opened

    def imported(path: str | None) -> tuple[Markup, Markup, gr.Timer, Markup]:
        if path is None:  # no browser asks without a file
            return *look(), Markup()
        try:
            said = show_import(store.keep(bundle_reading.read(Path(path))))
        except CelError as error:
            said = layout.explained(error)
        finally:
            Path(path).unlink(missing_ok=True)
        return *look(), said

    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
    upload.upload(lambda: READING, outputs=message, **quiet).then(
        imported, inputs=upload, outputs=[head, rows, timer, message], **quiet
    )
    gr.on([demo.load, timer.tick], look, outputs=[head, rows, timer], **quiet)
    for listened in (head, rows):
        opened = listened.press(pressed, inputs=is_open, outputs=[form.column, message, is_open], **quiet)
        opened.then(form.estimated, inputs=form.fields, outputs=form.message, **quiet)


def show_head(records: Sequence[SearchRecord]) -> Markup:
    """The page's title, with what can be done."""
    new = button("New search", "new", css="btn" if not records else "btn primary")
    take = button("Import", data_upload=True, title="Take in a search that another dashboard exported")
    box = filter_box("searches", "Filter by model, task, status, head") if records else ""
    return layout.page_head("Searches", QUESTION, actions=join([box, take, new]))


def show_import(kept: Kept) -> Markup:
    """What became of an imported search."""
    said = str(kept)
    return notice(said[:1].upper() + said[1:], tag("a", "Open it", href=f"/search?run={kept.search}"), css="wide")


def show(records: Sequence[SearchRecord]) -> Markup:
    """The list of these searches."""
    if not records:
        return tag("div", _empty(), css="wait")
    n_live = sum(map(is_live, records))
    rows = table(COLUMNS, [row(record) for record in records], "searches")
    count = f"{formats.count(len(records))} {'search' if len(records) == 1 else 'searches'}"
    below = tag("div", f"{count}, {n_live} queued or running" if n_live else count, css="sub", style="margin-top:8px")
    return join([tag("div", rows, css="card list wait"), below])


def row(record: SearchRecord) -> Row:
    """One search as a row that opens it."""
    href = f"/search?run={record.id}"
    held_out, name = record.held_out, formats.model_name(record.config.model)
    link = join([tag("a", name, href=href, title=record.config.model), tag("span", record.id, css="sub mono id")])
    age = tag(
        "time",
        formats.age(record.created_at),
        datetime=record.created_at.isoformat(),
        title=f"{record.created_at:%Y-%m-%d %H:%M} UTC",
        data_age=True,
        data_sort=-record.created_at.timestamp(),
    )
    task = TASKS[record.config.task].title if record.config.task in TASKS else record.config.task
    numbers: list[object] = ["", "", "", "", "", ""]
    heads = head_chips(record.frozen_set)
    if held_out:
        n = held_out.n
        accuracy = f"{formats.percent(held_out.intact_accuracy, n)} → {formats.percent(held_out.ablated_accuracy, n)}"
        numbers = [
            formats.count(n),
            accuracy,
            signed(formats.points(held_out.gain, n), held_out.gain),
            formats.interval(held_out.interval, n),
            formats.count(held_out.fixes),
            formats.count(held_out.harms),
        ]
    elif is_live(record) or record.status in (Status.STOPPED, Status.INTERRUPTED):
        heads = _going(record)
    if record.frozen_set and not record.beneficial:
        heads = tag("span", "no beneficial set", css="sub")
    return Row([status_chip(record), link, task, *numbers, heads, age], href=href)


def _going(record: SearchRecord) -> Markup:
    """How far an unfinished search is."""
    if not record.total:
        return tag("span", record.stage, css="sub")
    label = f"{record.stage}, {100 * record.done // record.total} %"
    return tag("span", progress(record.done, record.total, label), tag("span", label, css="sub"), css="inline")


def _empty() -> Markup:
    what = (
        "A search takes one model and one task, removes every head in turn on the discovery examples, then the best ones "
        "together, and tests the one set it froze on held-out examples."
    )
    start = tag("span", button("Run the demo search", "demo", css="btn primary"), css="chips")
    demo = command("python -m cel_core search --model demo --task carry")
    said = join(["A small model that comes with the project, a minute or two. The same on the command line: ", demo])
    return notice("No searches yet", what, said, start)
