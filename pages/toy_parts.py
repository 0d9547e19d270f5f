"""What every component of the toy page shows for a question: what its content depends on, and how to make it.

The page makes a component's content only when what it depends on has changed since it was last shown.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from cel_core.errors import CelError
from cel_core.store import Store
from cel_core.toy import MAX_TASKS, PopulationSummary, Trajectory
from pages import formats, layout, toy_controls, toy_figures, toy_panels, toy_question, toy_words, toy_work
from pages.markup import Markup, join, tag
from pages.toy_jobs import Job
from pages.toy_question import Question

JOBS = ("population", "scaling", "map")
POLL_S = 0.7
Part = tuple[tuple[object, ...], Callable[[], object]]
"""What a component's content depends on, and how to make it."""


def parts_of(store: Store, asked: Question, serial: int) -> dict[str, Part]:
    """What the page shows for a question.

    Args:
        store: where runs and populations are kept.
        asked: the question.
        serial: the number that the browser gave it.

    Raises:
        ToyError: the run cannot be made.
    """
    run = toy_work.trajectory(store, asked)
    jobs = {kind: toy_work.job_of(kind, asked) for kind in (*JOBS, "run")}
    live = any(job is not None and not job.ended for job in jobs.values())
    key = toy_work.run_key(asked)
    parts: dict[str, Part] = {
        "top": ((asked.config, "top"), lambda: layout.page_head(toy_words.title(asked), toy_words.introduction(asked))),
        "state": ((key, run is None), lambda: _state(asked, run)),
        "results": ((run is not None,), lambda: gr.Column(visible=run is not None)),
        "lab": ((True,), lambda: gr.Column(visible=True)),
        "answered": ((serial,), lambda: _answered(serial, live or run is None)),
    }
    if run is not None:
        parts |= _run_parts(asked, run)
    found = toy_work.summary(store, asked)
    return parts | _population_parts(asked, found, jobs) | _scaling_parts(asked, found, jobs) | _map_parts(asked, jobs)


def _run_parts(asked: Question, run: Trajectory) -> dict[str, Part]:
    key, logarithmic = toy_work.run_key(asked), asked.logarithmic
    head = None if asked.intact else int(run.winners[0]) if asked.deleted is None else asked.deleted
    parts: dict[str, Part] = {"curves": ((key, logarithmic), lambda: _curves_head(asked, run))}
    for feature in range(MAX_TASKS + 1):
        shown = feature < run.config.n_features
        parts[f"card{feature}"] = ((shown,), lambda shown=shown: gr.Column(visible=shown))
        if shown:
            parts |= {
                f"title{feature}": ((key,), lambda f=feature: tag("div", toy_words.feature_title(asked, f), css="k")),
                f"plot{feature}": (
                    (key, logarithmic),
                    lambda f=feature: layout.plotted(toy_figures.coefficients(run, f, logarithmic)),
                ),
                f"says{feature}": ((key,), lambda f=feature: toy_panels.says(toy_words.feature_says(run, f))),
            }
    legend = join(tag("span", tag("i", css=css), name, css="headkey") for name, css in (("A", "a"), ("B", "b"), ("joint", "j")))
    return parts | {
        "risks_head": ((key,), lambda: toy_panels.plot_head("Risks over the steps", legend, toy_panels.csv(asked, "run"))),
        "risks": ((key, head), lambda: layout.plotted(toy_figures.risks(run, head))),
        "risks_say": ((key, head), lambda: toy_panels.says(toy_words.risks_say(run, head))),
        "deletion": ((key, head), lambda: toy_panels.deletion(asked, run, head)),
    }


def _population_parts(asked: Question, found: PopulationSummary | None, jobs: Mapping[str, Job | None]) -> dict[str, Part]:
    job, key = jobs["population"], toy_work.population_key(asked)
    known, n = found is not None, formats.count(asked.n_seeds)

    def head() -> Markup:
        link = toy_panels.csv(asked, "population") if known else ""
        sizes = toy_controls.population_form(asked.query)
        return toy_panels.plot_head("How often does a head carry the conflict alone?", sizes, link)

    def gains_head() -> Markup:
        return toy_panels.plot_head("Without that head, on E", toy_panels.csv(asked, "population") if known else "")

    stamp = (key, found)
    nothing = "Comes with the population: what deleting the shared feature's winner does to each risk."
    return {
        "population_job": (
            _stamp(key, job, known),
            lambda: toy_panels.job_bar("population", job, known, f"Train {n} seeds", asked),
        ),
        "population_head": (stamp, head),
        "population": (stamp, lambda: toy_panels.population(asked, found)),
        "gains_head": (stamp, gains_head),
        "gains": (stamp, lambda: _plot(toy_figures.gains(found) if found else None)),
        "gains_say": (stamp, lambda: toy_panels.says(toy_words.gains_say(asked, found) if found else nothing)),
    }


def _scaling_parts(asked: Question, found: PopulationSummary | None, jobs: Mapping[str, Job | None]) -> dict[str, Part]:
    job, key, points = jobs["scaling"], toy_work.scaling_key(asked), toy_work.points(asked)
    order = found.loser_order if found else None
    stamp = (key, len(points), order)

    def head() -> Markup:
        return toy_panels.plot_head("What losing heads keep", toy_panels.csv(asked, "scaling") if points else "")

    return {
        "scaling_head": (stamp, head),
        "scaling_job": (
            _stamp(key, job, False),
            lambda: toy_panels.job_bar("scaling", job, False, "Fit the order in alpha", asked),
        ),
        "scaling": (stamp, lambda: _plot(toy_figures.scaling(points))),
        "scaling_say": (stamp, lambda: toy_panels.says(toy_words.scaling_says(points, order))),
    }


def _map_parts(asked: Question, jobs: Mapping[str, Job | None]) -> dict[str, Part]:
    job, key, cells = jobs["map"], toy_work.map_key(asked), toy_work.cells(asked)
    total = len(asked.x.values) * len(asked.y.values)
    title = f"Phase map: {total} cells of {formats.count(asked.n_cell_seeds)} runs"
    stamp = (key, len(cells), asked.measure)
    return {
        "map_head": (stamp, lambda: toy_panels.plot_head(title, toy_panels.csv(asked, "map") if cells else "")),
        "map_job": (_stamp(key, job, False), lambda: toy_panels.job_bar("map", job, False, "Compute the map", asked)),
        "map": (stamp, lambda: toy_panels.phase_map(asked, cells)),
        "map_say": (stamp, lambda: toy_panels.says(toy_panels.map_says(asked, cells))),
    }


def _curves_head(asked: Question, run: Trajectory) -> Markup:
    scales = toy_controls.segments(
        "scale", {"linear": "Linear", "log": "Logarithmic"}, "log" if asked.logarithmic else "linear"
    )
    end = tag("span", scales, toy_panels.csv(asked, "run"), css="end")
    tools = tag("div", toy_controls.legend(asked.config), end, css="tools bare")
    return join([tools, toy_panels.says(toy_words.run_says(run))])


def _state(asked: Question, run: Trajectory | None) -> Markup:
    """What has to be said before the curves: divergence, switches outside the theorems, a run that takes a while."""
    parts = []
    if asked.config.beyond.labels:
        parts.append(toy_panels.outside(asked.config.beyond.labels))
    if run is None:
        about = formats.duration(toy_question.cost_s(asked.config))
        steps = formats.count(asked.config.last_step)
        text = tag("span", f"Training one run of {steps} steps, about {about}.", css="sub")
        parts.append(tag("div", text, tag("div", tag("i"), css="prog unknown"), css="card"))
    elif run.diverged:
        parts.append(toy_panels.diverged(run))
    return tag("div", *parts, css="stack")


def _answered(serial: int, live: bool) -> Markup:
    """What tells the browser that a question is answered, and when to ask again."""
    return tag("span", hidden=True, data_serial=serial, data_again=round(1000 * POLL_S) if live else None)


def troubled(error: CelError, serial: int) -> dict[str, Part]:
    """The page when the address asks for what is no model: the controls stay, to mend it."""
    head = layout.page_head(toy_words.title(None), "The address or a control asks for something that is no model.")
    return {
        "top": ((str(error),), lambda: head),
        "state": ((str(error),), lambda: layout.explained(error)),
        "results": ((False,), lambda: gr.Column(visible=False)),
        "lab": ((False,), lambda: gr.Column(visible=False)),
        "answered": ((serial,), lambda: _answered(serial, live=False)),
    }


def _stamp(key: tuple[str, ...], job: Job | None, known: bool) -> tuple[object, ...]:
    """What of a job changes its bar."""
    if job is None:
        return (key, known)
    return key, known, round(job.share, 3), job.ended, job.stopping, job.stopped, job.problem, job.began_s is None


def _plot(chart: Any | None) -> Any:
    return gr.Plot(visible=False) if chart is None else gr.Plot(layout.plotted(chart), visible=True)
