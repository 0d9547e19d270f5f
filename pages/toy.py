"""Toy model (``/toy``): two tasks in conflict, a few heads, and which head carries the compromise.

The address is the state. A change goes into it and to the server, which answers with what differs from what the page shows;
what takes longer runs as a job (`toy_jobs`), so that a reload finds it still advancing.

The browser asks one question at a time (toy.js): a change, a button, or, while a job runs, how far it is. Each has a serial
number, which its answer gives back; an answer that a newer question has overtaken says nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from cel_core.errors import CelError
from cel_core.store import Store
from cel_core.toy import MAX_TASKS
from pages import layout, toy_controls, toy_panels, toy_question, toy_words, toy_work
from pages.markup import tag
from pages.toy_parts import JOBS, Part, parts_of, troubled
from pages.toy_question import Question


@dataclass
class Shown:
    """What one session's page shows."""

    serial: int = 0  # of the newest question
    signatures: dict[str, tuple[object, ...]] = field(default_factory=dict)  # what each component's content depends on


def build(demo: gr.Blocks, store: Store, _worker: object = None) -> None:
    """The page's components and events, inside its Blocks; it needs no worker, since there is no model to own."""
    layout.navigation("Toy model")
    made: dict[str, Any] = {}
    with gr.Column(elem_classes="page"):
        made["top"] = layout.block(layout.loading(toy_words.title(None)))
        with gr.Row(elem_classes="body"):
            with gr.Column(scale=0, min_width=0, elem_classes="left"):
                made["form"] = layout.block(css="toyleft")
                with gr.Column(elem_classes="card tight demo"):
                    made["answered"] = layout.block(js=toy_controls.SCRIPT)
                    layout.block(tag("span", "The same trade in a trained transformer", css="k"))
                    made["demo"] = layout.block()
            with gr.Column(scale=1, elem_classes="right"):
                made["state"] = layout.block()
                with gr.Column(visible=False, elem_classes="results") as made["results"]:
                    _run_components(made)
        with gr.Column(visible=False) as made["lab"]:
            _lab_components(made)
    shown = gr.State(Shown())
    drawn = [*made.values(), shown]
    overtaken = [gr.skip()] * len(drawn)

    def draw(parts: Mapping[str, Part], now: Shown, serial: int) -> list[Any]:
        """Every component's new content, where it differs from what the page shows; and what the page then shows."""
        fresh = {name: part for name, part in parts.items() if now.signatures.get(name) != part[0]}
        content = [fresh[name][1]() if name in fresh else gr.skip() for name in made]
        if serial != now.serial:
            return overtaken
        now.signatures |= {name: part[0] for name, part in fresh.items()}
        return [*content, now]

    def look(query: Mapping[str, str], now: Shown, serial: int, begin: bool = False, act: str = "") -> list[Any]:
        try:
            question = toy_question.read(query)
            if act:
                perform(store, question, act)
            if begin:
                _begin_by_itself(store, question)
            return draw(parts_of(store, question, serial), now, serial)
        except CelError as error:
            return draw(troubled(error, serial), now, serial)

    def opened(request: gr.Request) -> list[Any]:
        query = {str(key): str(value) for key, value in dict(request.query_params).items()}
        content = look(query, Shown(), 0, begin=True)
        for name, make in _forms(store, query).items():
            content[list(made).index(name)] = make()
        return content

    def asked(now: Shown, event: gr.EventData) -> list[Any]:
        told = event._data if isinstance(event._data, dict) else {}
        query, serial = told.get("query"), told.get("serial")
        if not isinstance(query, dict) or not isinstance(serial, int) or serial <= now.serial:
            return overtaken
        now.serial = serial
        if told.get("anew"):
            now.signatures.clear()
        query = {str(key): str(value) for key, value in query.items()}
        return look(query, now, serial, act=layout.told(event, "act"))

    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
    demo.load(opened, outputs=drawn, **quiet)
    # the next question may be asked before Gradio counts the last one as answered: other modes would drop or change it
    made["answered"].ask(asked, inputs=shown, outputs=drawn, trigger_mode="multiple", **quiet)


def _run_components(made: dict[str, Any]) -> None:
    """The single run: curves, risks, deletion."""
    made["curves"] = layout.block()
    with gr.Row(elem_classes="curves"):
        for feature in range(MAX_TASKS + 1):
            with gr.Column(elem_classes="card plot", min_width=250, visible=feature < 3) as made[f"card{feature}"]:
                made[f"title{feature}"] = layout.block()
                made[f"plot{feature}"] = gr.Plot(show_label=False, container=False)
                made[f"says{feature}"] = layout.block()
    with gr.Row():
        with gr.Column(elem_classes="card plot", min_width=300):
            made["risks_head"] = layout.block()
            made["risks"] = gr.Plot(show_label=False, container=False)
            made["risks_say"] = layout.block()
        with gr.Column(elem_classes="card tight", min_width=300):
            layout.block(tag("span", "Delete a head at the end", css="k"))
            made["deletion"] = layout.block()


def _lab_components(made: dict[str, Any]) -> None:
    """Many runs: population, gains, scaling, phase map."""
    with gr.Row():
        with gr.Column(elem_classes="card tight", min_width=300):
            made["population_head"] = layout.block()
            made["population_job"] = layout.block()
            made["population"] = layout.block()
        with gr.Column(elem_classes="card plot", min_width=300):
            made["gains_head"] = layout.block()
            made["gains"] = gr.Plot(show_label=False, container=False, visible=False)
            made["gains_say"] = layout.block()
        with gr.Column(elem_classes="card plot", min_width=300):
            made["scaling_head"] = layout.block()
            made["scaling_job"] = layout.block()
            made["scaling"] = gr.Plot(show_label=False, container=False, visible=False)
            made["scaling_say"] = layout.block()
    with gr.Column(elem_classes="card tight"):
        made["map_head"] = layout.block()
        with gr.Row():
            with gr.Column(elem_classes="tight", scale=5, min_width=520):
                made["map"] = layout.block()
            with gr.Column(elem_classes="tight", scale=3, min_width=300):
                made["map_form"] = layout.block()
                made["map_job"] = layout.block()
                made["map_say"] = layout.block()


def perform(store: Store, asked: Question, act: str) -> None:
    """Begin or stop what a button asks for; other words do nothing."""
    begin: dict[str, Callable[[], None]] = {
        "population": lambda: toy_work.begin_population(store, asked),
        "scaling": lambda: toy_work.begin_scaling(store, asked),
        "map": lambda: toy_work.begin_map(asked),
    }
    if act in begin:
        begin[act]()
    elif act.removeprefix("stop ") in JOBS:
        toy_work.stop(act.removeprefix("stop "), asked)


def _begin_by_itself(store: Store, asked: Question) -> None:
    """A visit trains population and scaling where that takes seconds, so that the page has its numbers without a click."""
    known = {"population": toy_work.summary(store, asked) is not None, "scaling": asked.config.heads == 1}
    for kind in known:
        quick = toy_work.expected_s(kind, asked) <= toy_work.LONGEST_LOOK_S
        if quick and not known[kind] and toy_work.job_of(kind, asked) is None:
            perform(store, asked, kind)


def _forms(store: Store, query: Mapping[str, str]) -> dict[str, Callable[[], object]]:
    """What is drawn once, when the page opens, and is the browser's from then on."""
    return {
        "form": lambda: toy_controls.form(query),
        "map_form": lambda: toy_controls.map_form(query),
        "demo": lambda: toy_panels.demo(store.searches()),
    }
