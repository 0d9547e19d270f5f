"""Toy model (``/toy``): two tasks in conflict, a few heads, and which head carries the compromise.

The address is the state. A change goes into it and to the server, which answers with what differs from what the page shows;
what takes longer runs as a job that a timer looks at (`toy_jobs`), so that a reload finds it still advancing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from cel_core.errors import CelError
from cel_core.store import Store
from cel_core.toy import MAX_TASKS
from pages import layout, toy_controls, toy_panels, toy_question, toy_words, toy_work
from pages.markup import tag
from pages.toy_parts import JOBS, Part, parts_of, troubled
from pages.toy_question import Question

POLL_S = 0.7


def build(demo: gr.Blocks, store: Store, _worker: object = None) -> None:
    """The page's components and events, inside its Blocks; it needs no worker, since there is no model to own."""
    layout.navigation("Toy model")
    made: dict[str, Any] = {}
    with gr.Column(elem_classes="page"):
        made["top"] = layout.block(layout.loading(toy_words.title(None)))
        with gr.Row(elem_classes="body"):
            with gr.Column(scale=0, min_width=0, elem_classes="left"):
                made["form"] = layout.block(js=layout.RESTORE + toy_controls.SCRIPT, css="toyleft")
                with gr.Column(elem_classes="card tight demo"):
                    layout.block(tag("span", "The same trade in a trained transformer", css="k"))
                    made["demo"] = layout.block()
            with gr.Column(scale=1, elem_classes="right"):
                made["state"] = layout.block()
                with gr.Column(visible=False, elem_classes="results") as made["results"]:
                    _run_components(made)
        with gr.Column(visible=False) as made["lab"]:
            _lab_components(made)
    asked, seen = gr.State({}), gr.State({})
    timer = made["timer"] = gr.Timer(POLL_S, active=False)
    drawn = list(made.values())

    def answer(parts: Mapping[str, Part], before: dict[str, Any]) -> list[Any]:
        """Every component's new content, where it differs from what the page shows; and what the page then shows."""
        after = dict(before)
        content = []
        for name in made:
            signature, make = parts.get(name, ((), gr.skip))
            fresh = name in parts and before.get(name) != signature
            content.append(make() if fresh else gr.skip())
            if fresh:
                after[name] = signature
        return [*content, after]

    def look(query: Mapping[str, str], before: dict[str, Any], begin: bool = False, act: str = "") -> list[Any]:
        try:
            question = toy_question.read(query)
            if act:
                perform(store, question, act)
            if begin:
                _begin_by_itself(store, question)
            return answer(parts_of(store, question), before)
        except CelError as error:
            return answer(troubled(error), before)

    def opened(request: gr.Request) -> list[Any]:
        query = {str(key): str(value) for key, value in dict(request.query_params).items()}
        content = look(query, {}, begin=True)
        for name, make in _forms(store, query).items():
            content[list(made).index(name)] = make()
        return [*content, query]

    def changed(before: dict[str, Any], event: gr.EventData) -> list[Any]:
        sent = event._data.get("query")
        query = {str(key): str(value) for key, value in sent.items()} if isinstance(sent, dict) else {}
        return [*look(query, before, act=str(event._data.get("act", ""))), query]

    def polled(query: dict[str, str], before: dict[str, Any]) -> list[Any]:
        return look(query, before)

    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
    demo.load(opened, outputs=[*drawn, seen, asked], **quiet)
    made["form"].ask(changed, inputs=seen, outputs=[*drawn, seen, asked], trigger_mode="always_last", **quiet)
    timer.tick(polled, inputs=[asked, seen], outputs=[*drawn, seen], **quiet)


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
