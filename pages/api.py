"""The dashboard from code: five endpoints for ``gradio_client``, and with ``--mcp`` for agents; all other events are hidden.

Each one reads the store, or asks the worker as a click would; a `CelError` comes back as the endpoint's one-line error.
"""

import functools
import secrets
import time
from collections.abc import Callable
from typing import Any, ParamSpec

import gradio as gr
import pandas as pd

from cel_core import statistics
from cel_core.errors import CelError, ConfigError
from cel_core.heads import HeadSet
from cel_core.records import Part, SearchRecord
from cel_core.store import Store
from cel_core.worker import Worker
from pages import examples
from pages.live import heads_of, part_of

MAX_WAIT_S = 600.0
LOOK_S = 0.1
COLUMNS = ["position", "key", "kind", "context", "intact_correct", "ablated_correct", "intact_answer", "ablated_answer"]
MARGINS = ["intact_margin_nats", "ablated_margin_nats"]

P = ParamSpec("P")


def build(store: Store, worker: Worker) -> None:
    """The endpoints, inside the first page's Blocks."""

    def list_searches() -> list[dict[str, Any]]:
        """All searches, newest first: id, status, model, task, and the held-out comparison where there is one."""
        return [record.as_json() for record in store.searches()]

    def search_status(search: str) -> dict[str, Any]:
        """One search by its id: status, stage, evaluations done and in all, and the held-out comparison."""
        record = store.search(search)
        return {"stage": record.stage, "done": record.done, "total": record.total, **record.as_json()}

    def outcomes(search: str, heads: str = "", part: str = "discovery") -> list[dict[str, Any]]:
        """Every example of one side ("discovery" or "held-out") with both answers, intact and without heads ("L2H0,L2H6")."""
        record = store.search(search)
        return _rows(examples.compared(_paired(store, record, heads, part)))

    def flips(search: str, heads: str = "", part: str = "held-out") -> list[dict[str, Any]]:
        """The examples whose correctness changes without the heads; without heads given, those of the frozen set."""
        record = store.search(search)
        return _rows(examples.flips(_paired(store, record, heads or str(record.frozen_set or ""), part)))

    def evaluate(search: str, heads: str, part: str = "discovery", wait_s: float = 120) -> dict[str, Any]:
        """Accuracy of one side intact and without heads ("L2H0,L2H6"); what is not stored is evaluated, for up to wait_s."""
        record = _begun(store.search(search))
        head_set, side = heads_of(record, heads), part_of(record, part)
        n = record.n_held_out if side is Part.HELD_OUT else record.n_discovery
        paired = store.paired(record.id, side, head_set)
        if len(paired) < n:
            session, end = f"api-{secrets.token_hex(4)}", time.monotonic() + min(max(0.0, float(wait_s)), MAX_WAIT_S)
            worker.live(session, record.id, side, head_set)
            while worker.live_state(session).running and time.monotonic() < end:
                time.sleep(LOOK_S)
            if error := worker.live_state(session).error:
                raise CelError(error)
            paired = store.paired(record.id, side, head_set)
        return _summary(record, side, head_set, n, examples.compared(paired))

    for name, endpoint in (
        ("list", list_searches),
        ("search_status", search_status),
        ("outcomes", outcomes),
        ("flips", flips),
        ("evaluate", evaluate),
    ):
        gr.api(_answering(endpoint), api_name=name, api_description=endpoint.__doc__, concurrency_limit=4)


def _answering(endpoint: Callable[P, Any]) -> Callable[P, Any]:
    """An endpoint whose `CelError` is its one-line error; signature and docstring stay."""

    @functools.wraps(endpoint)
    def safe(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return endpoint(*args, **kwargs)
        except CelError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return safe


def _paired(store: Store, record: SearchRecord, heads: str, part: str) -> pd.DataFrame:
    _begun(record)
    return store.paired(record.id, part_of(record, part), heads_of(record, heads))


def _begun(record: SearchRecord) -> SearchRecord:
    if not record.n_discovery:
        raise ConfigError(f"search {record.id} has no examples yet: wait until it has loaded its model")
    return record


def _rows(compared: pd.DataFrame) -> list[dict[str, Any]]:
    chosen = compared[[*COLUMNS, *MARGINS, "flip"]].to_dict("records")
    for row, example in zip(chosen, compared.itertuples(), strict=True):
        for name in ("intact_answer", "ablated_answer"):
            row[name] = examples.answer_text(example, row[name])
        row |= {name: None for name in MARGINS if row[name] != row[name]}
        row["gold"] = examples.gold_text(example)
    return [{str(name): value for name, value in row.items()} for row in chosen]


def _summary(record: SearchRecord, part: Part, head_set: HeadSet, n: int, compared: pd.DataFrame) -> dict[str, Any]:
    known = len(compared)
    fixes, harms = int((compared["flip"] == "fix").sum()), int((compared["flip"] == "harm").sum())
    intact = int(compared["intact_correct"].astype(bool).sum())
    shown = {"search_id": record.id, "part": str(part), "heads": [str(head) for head in head_set], "n": known, "n_in_all": n}
    if not known:
        return shown
    return shown | {
        "intact_accuracy": intact / known,
        "ablated_accuracy": (intact + fixes - harms) / known,
        "gain": statistics.gain(fixes, harms, known),
        "gain_interval": list(statistics.gain_interval(fixes, harms, known)),
        "mcnemar_p": statistics.mcnemar_p(fixes, harms),
        "fixes": fixes,
        "harms": harms,
    }
