"""What the worker does, in a few words at the right end of the navigation bar: every page reads it from ``/worker``."""

from collections import OrderedDict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cel_core.errors import CelError
from cel_core.records import SearchRecord
from cel_core.store import Store
from cel_core.worker import STARTING, Worker, WorkerState
from pages import formats
from pages.pace import Pace

N_PACES = 8  # searches whose pace is remembered


def line(state: WorkerState, record: SearchRecord | None, left_s: float | None) -> str:
    """The worker's state in words.

    Args:
        state: the worker's own word.
        record: the search it works on, if any.
        left_s: seconds left in that search's stage, where known.
    """
    if state.status == "dead":
        return f"worker not running: {state.detail}"
    if state.status == "loading" and state.detail == STARTING:
        return "worker starting"
    if state.status == "loading":
        model = state.detail or (record.config.model if record is not None else state.model)  # another page may want another
        return f"worker loading {formats.model_name(model)}" if model else "worker loading a model"
    parts = ["worker idle"]
    if state.status == "running" and record is not None:
        share = f", {100 * record.done // record.total} %" if record.total else ""
        left = f", about {formats.duration(left_s)} left" if left_s is not None else ""
        parts = [f"worker running {record.id}: {record.stage}{share}{left}"]
    if state.dtype:
        parts.append(f"{state.dtype} on {state.device}")
    return "  ·  ".join(parts)


def routes(store: Store, worker: Worker) -> list[BaseRoute]:
    """The route that the bar asks."""
    paces: OrderedDict[str, Pace] = OrderedDict()

    def answer(request: Request) -> Response:
        del request
        state, record, left_s = worker.state(), None, None
        try:
            if state.search is not None:
                record = store.search(state.search)
                left_s = paces.setdefault(record.id, Pace()).left_s(record)
                while len(paces) > N_PACES:
                    paces.popitem(last=False)
        except CelError as error:
            return JSONResponse({"state": "dead", "text": str(error), "search": ""})
        return JSONResponse({"state": state.status, "text": line(state, record, left_s), "search": state.search or ""})

    return [Route("/worker", answer)]
