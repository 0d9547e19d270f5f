"""The form of a new search: what it asks, what it makes of the answers, and what it refuses in one line."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gradio as gr

from cel_core.config import DTYPES, SearchConfig
from cel_core.errors import CelError, ConfigError
from cel_core.paths import typed_path
from cel_core.tasks import TASKS, Scoring, find_task
from cel_core.tasks.arithmetic import KINDS
from cel_core.worker import Worker
from pages import formats, layout
from pages.markup import Markup, notice, tag

MODELS = (
    "demo",
    "HuggingFaceTB/SmolLM3-3B",
    "Qwen/Qwen2.5-3B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct",
    "Qwen/Qwen2.5-0.5B-Instruct",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
)
DEVICES = ("auto", "cpu", "cuda", "mps")
DEFAULT_ROWS = "default"
MAX_TEXT = 500
RUNS_CODE = (
    "MBPP runs the programs that the model writes, on this machine. They run confined (no network, no writing outside a "
    "temporary folder, 3 s, 1 GiB), which is a fence and no wall: allow it only where that is acceptable."
)


class Built(NamedTuple):
    """The form's column, and what shows its estimate."""

    column: gr.Column
    estimated: Callable[..., Markup]
    fields: list[Any]
    message: gr.HTML


class Form(NamedTuple):
    """The answers, in the order of the components; numbers left empty are None."""

    model: str | None
    task: str
    data: str | None
    kinds: list[str]
    n_discovery: float | None
    n_held_out: float | None
    p: float | None
    k: float | None
    seed: float | None
    shortlist: float | None
    device: str
    dtype: str
    chat_template: bool
    full_sweep: bool
    allow_code_execution: bool


def config_of(form: Form) -> SearchConfig:
    """The search that a form asks for.

    Raises:
        ConfigError: an answer is missing, or cannot be.
    """
    task = find_task(str(form.task))
    model, data = _text(form.model, "model"), _text(form.data, "rows")
    if not model:
        raise ConfigError("model is empty: give demo, a hub id, a folder or a .gguf file")
    if model.startswith(("/", "~", ".")) and not typed_path(model).exists():
        raise ConfigError(f"model '{model}' does not exist on this machine: check the path, or give a hub id")
    rows = None if data in ("", DEFAULT_ROWS) else data
    if rows not in (None, "samples") and not typed_path(rows).is_dir():
        raise ConfigError(f"rows '{rows}' is not a folder on this machine: give a folder, samples or {DEFAULT_ROWS}")
    if form.device not in DEVICES:
        raise ConfigError(f"device '{str(form.device)[:40]}' is unknown: choose one of {', '.join(DEVICES)}")
    kinds = tuple(map(str, form.kinds or ())) if task.name == "arithmetic" else ()
    if unknown := [kind[:40] for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"kind '{unknown[0]}' is unknown: choose among {', '.join(KINDS)}")
    if task.scoring == Scoring.PROGRAM and not form.allow_code_execution:
        raise ConfigError(
            f"task {task.title} runs code that the model writes: tick 'Allow code execution', where that is acceptable"
        )
    n_discovery = _whole(form.n_discovery, "discovery examples")
    n_held_out = _whole(form.n_held_out, "held-out examples")
    return SearchConfig(
        model=model,
        task=task.name,
        data=rows,
        kinds=kinds,
        n_discovery=None if n_discovery == task.paper_sizes.discovery else n_discovery,  # None takes what there is, if less
        n_held_out=None if n_held_out == task.paper_sizes.held_out else n_held_out,
        p=_whole(form.p, "p"),
        k=_whole(form.k, "k"),
        seed=_whole(form.seed, "seed", least=0),
        shortlist=_whole(form.shortlist or 0, "shortlist", least=0) or None,
        device=form.device,
        dtype=str(form.dtype),
        chat_template=bool(form.chat_template),
        full_sweep=bool(form.full_sweep),
        allow_code_execution=bool(form.allow_code_execution) and task.scoring == Scoring.PROGRAM,
    )


def build(worker: Worker) -> Built:
    """The form's components and events; its column is hidden until asked for."""
    with gr.Column(visible=False, elem_classes="card form") as column:
        with gr.Row():
            model = gr.Dropdown(
                list(MODELS),
                value="demo",
                label="Model",
                info="A name, hub id, folder or .gguf",
                allow_custom_value=True,
                scale=3,
            )
            task = gr.Dropdown(
                [(t.title, t.name) for t in TASKS.values()], value="carry", label="Task", info="What it is searched on", scale=2
            )
            data = gr.Dropdown(
                [("default: generated, or from the hub", DEFAULT_ROWS), ("samples of this project", "samples")],
                value=DEFAULT_ROWS,
                label="Rows",
                info="Or a folder of JSONL or Parquet",
                allow_custom_value=True,
                scale=3,
            )
            kinds = gr.Dropdown(
                list(KINDS), value=[], multiselect=True, label="Kinds", info="None chosen: all ten", visible=False, scale=3
            )
        with gr.Row():
            sizes = find_task("carry").paper_sizes
            n_discovery = _number("Discovery examples", "They choose the heads", sizes.discovery)
            n_held_out = _number("Held-out examples", "They test the choice", sizes.held_out)
            p = _number("p", "Heads in the pool", 10)
            k = _number("k", "Heads a subset, at most", 3)
            seed = _number("Seed", "Draws the examples", 0)
            shortlist = _number("Shortlist", "0: screen every head", 0)
            device = gr.Dropdown(list(DEVICES), value="auto", label="Device", info="auto: the fastest", min_width=110)
            dtype = gr.Dropdown(["auto", *DTYPES], value="auto", label="dtype", info="auto: by device", min_width=110)
        with gr.Row(elem_classes="checks"):
            chat = gr.Checkbox(label="Chat template", info="For instruct models", min_width=200)
            full = gr.Checkbox(label="Full sweep", info="Every head on every example: no bounds, slower", min_width=200)
            code = gr.Checkbox(label="Allow code execution", info="MBPP only", visible=False, min_width=200)
        warning = layout.block()
        with gr.Row(elem_classes="end"):
            message = layout.block(css="grow")
            ask = gr.Button("Estimate", scale=0, min_width=100, elem_classes="small")
            launch = gr.Button("Start the search", variant="primary", scale=0, min_width=150)
    fields = [model, task, data, kinds, n_discovery, n_held_out, p, k, seed, shortlist, device, dtype, chat, full, code]

    def task_chosen(name: str) -> list[Any]:
        chosen = TASKS.get(str(name))
        runs_code = chosen is not None and chosen.scoring == Scoring.PROGRAM
        sizes = chosen.paper_sizes if chosen else None
        return [
            gr.Dropdown(visible=name == "arithmetic"),
            sizes.discovery if sizes else gr.skip(),
            sizes.held_out if sizes else gr.skip(),
            gr.Checkbox(visible=runs_code),
            notice("This task runs code", RUNS_CODE, css="bad wide") if runs_code else "",
        ]

    def asked(*answers: Any) -> Markup:
        try:
            return show_estimate(worker.estimate(config_of(Form(*answers))))
        except CelError as error:
            return layout.explained(error)

    def changed(*answers: Any) -> Markup:
        try:
            local = is_local(config_of(Form(*answers)))
        except CelError as error:
            return tag("span", str(error), css="sub")
        if local:
            return asked(*answers)
        return tag("span", "Estimate reads the rows and the model's configuration from the hub; no weight is read.", css="sub")

    def launched(*answers: Any) -> Markup:
        try:
            return layout.goto(f"/search?run={worker.launch(config_of(Form(*answers)))}")
        except CelError as error:
            return layout.explained(error)

    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
    task.change(task_chosen, inputs=task, outputs=[kinds, n_discovery, n_held_out, code, warning], **quiet)
    for field in fields:
        field.change(changed, inputs=fields, outputs=message, trigger_mode="always_last", **quiet)
    ask.click(asked, inputs=fields, outputs=message, **quiet)
    launch.click(launched, inputs=fields, outputs=message, **quiet)
    return Built(column, changed, fields, message)


def is_local(config: SearchConfig) -> bool:
    """Whether neither model nor rows come from the hub, so that an estimate costs no download."""
    model = config.model == "demo" or typed_path(config.model).exists()
    return model and (config.data is not None or TASKS[config.task].hub is None)


def show_estimate(found: Mapping[str, Any]) -> Markup:
    """An estimate in one line."""
    time = "not known before a first search of this model and task"
    if found["seconds"] is not None:
        time = f"about {formats.duration(found['seconds'])}"
    facts = [
        f"{formats.count(found['n_discovery'])} discovery, {formats.count(found['n_held_out'])} held-out examples",
        f"at most {formats.count(found['n_evaluations'])} evaluations",
        f"time {time}",
        f"weights {formats.size(found['weight_bytes'])}",
    ]
    return tag("span", "  ·  ".join(facts), css="sub")


def _number(label: str, info: str, value: int) -> gr.Number:
    return gr.Number(value=value, label=label, info=info, min_width=110)


def _text(value: object, name: str) -> str:
    text = str(value or "").strip()
    if len(text) > MAX_TEXT or any(ord(character) < 32 for character in text):
        raise ConfigError(f"{name} {text[:40]!r} is too long, or holds control characters: give a name or a path")
    return text


def _whole(value: object, name: str, least: int = 1) -> int:
    if value is None or value == "":
        raise ConfigError(f"{name} is empty: give a whole number from {least}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
        raise ConfigError(f"{name} = {str(value)[:40]} is not a whole number: give one from {least}")
    if value < least:
        raise ConfigError(f"{name} = {int(value)}: give a whole number from {least}")
    return int(value)
