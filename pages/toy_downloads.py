"""The toy page's tables: ``/tables/toy/TABLE.csv`` with the page's own query, recomputed or read from where they are kept.

Tables: run (coefficients and risks over the steps), population, scaling and map.
"""

from dataclasses import asdict

import pandas as pd
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from cel_core.errors import ToyError
from cel_core.store import Store
from cel_core.toy import PhaseCell, PopulationSummary
from pages import downloads, toy_figures, toy_question, toy_work
from pages.toy_question import Question


def frame_of(store: Store, asked: Question, table: str) -> pd.DataFrame:
    """One table of a view.

    Raises:
        ToyError: there is no such table, or it is not computed yet.
    """
    if table == "run":
        run = toy_work.trajectory(store, asked)
        frame = pd.DataFrame() if run is None else toy_figures.frame_of(run)
    elif table == "population":
        found = toy_work.summary(store, asked)
        frame = pd.DataFrame() if found is None else summary_frame(asked, found)
    elif table == "scaling":
        frame = pd.DataFrame(toy_work.points(asked))
    elif table == "map":
        frame = cells_frame(asked, toy_work.cells(asked))
    else:
        raise ToyError(f"there is no table '{table[:40]}': choose one of run, population, scaling, map")
    if frame.empty:
        raise ToyError(f"the table {table} is not computed yet: begin it on the page")
    return frame


def summary_frame(asked: Question, found: PopulationSummary) -> pd.DataFrame:
    """A population as rows of quantity, value and what the theorem predicts."""
    rows: list[tuple[str, object, object]] = [
        ("n_seeds", found.n_seeds, None),
        ("n_diverged", found.n_diverged, None),
        ("n_event", found.n_event, None),
        ("pr_event", found.pr_event, found.pr_event_predicted),
        ("pr_event_se", found.pr_event_se, None),
        ("converged_share", found.converged_share, None),
        ("loser_median", found.loser_median, None),
        ("loser_order", found.loser_order, 4),
    ]
    for name in ("task_a_drop", "task_b_rise", "joint_rise"):
        spread = getattr(found, name)
        rows += [(f"{name}_{each}", getattr(spread, each), spread.predicted) for each in ("q1", "median", "q3") if spread]
    n_sound = found.n_seeds - found.n_diverged
    for feature, won in zip(asked.config.feature_names, found.winners_table, strict=True):
        rows += [(f"{feature}_won_by_head{head}", count, n_sound / len(won)) for head, count in enumerate(won)]
    return pd.DataFrame(rows, columns=["quantity", "value", "predicted"])


def cells_frame(asked: Question, cells: list[PhaseCell]) -> pd.DataFrame:
    """The map's cells, one a row."""
    frame = pd.DataFrame([asdict(cell) for cell in cells])
    return frame.rename(columns={"x": asked.x.setting, "y": asked.y.setting})


def routes(store: Store) -> list[BaseRoute]:
    """The download route, for the application that serves the pages."""

    def table(request: Request) -> Response:
        name, query = request.path_params["table"], dict(request.query_params)
        ending = request.path_params["ending"]
        return downloads.answer(f"cel-toy-{name}", ending, lambda: frame_of(store, toy_question.read(query), name))

    return [Route("/tables/toy/{table}.{ending}", table)]
