"""The dashboard from code: five endpoints for ``gradio_client``, and with ``--mcp`` for agents; all other events are hidden.

Each one reads the store, or asks the worker as a click would; a `CelError` comes back as the endpoint's one-line error. What
stands in an endpoint's docstring is what an agent reads of the tool. docs/api.md shows a call of each with its answer.
"""

import functools
import inspect
import json
import math
import secrets
import time
from collections.abc import Callable
from typing import Any, Literal, get_type_hints

import gradio as gr
import pandas as pd

from cel_core import statistics
from cel_core.errors import CelError, ConfigError, StoreError
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

Side = Literal["discovery", "held-out"]


def build(store: Store, worker: Worker) -> None:
    """The endpoints, inside the first page's Blocks."""

    def list_searches() -> list[dict[str, Any]]:
        """All searches, newest first: id, status, model, task, and the held-out comparison where there is one."""
        return [record.as_json() for record in store.searches()]

    def search_status(search: str) -> dict[str, Any]:
        """One search: its status and stage, evaluations done and in all, and the held-out comparison where there is one.

        Args:
            search: the search's id, as list_searches gives it, or the beginning of it.
        """
        record = store.search(search)
        return {"stage": record.stage, "done": record.done, "total": record.total, **record.as_json()}

    def outcomes(
        search: str, heads: str = "", part: Side = "discovery", limit: int = 0, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Examples of one side with the model's answers, intact and without some heads, as far as they are stored.

        Args:
            search: the search's id, as list_searches gives it, or the beginning of it.
            heads: the heads that are removed together, such as "L2H0,L2H6", layer and head from 0; empty for none.
            part: discovery, the examples that chose the heads, or held-out, which answers once a set is frozen.
            limit: how many examples at most; 0 for all, which may be thousands.
            offset: how many examples to leave out first.
        """
        return _rows(examples.compared(_paired(store, store.search(search), heads, part)), limit, offset)

    def flips(search: str, heads: str = "", part: Side = "held-out", limit: int = 0, offset: int = 0) -> list[dict[str, Any]]:
        """Examples whose answer turns right (fix) or wrong (harm) without the heads, once evaluate has them all.

        Args:
            search: the search's id, as list_searches gives it, or the beginning of it.
            heads: the heads that are removed together, such as "L2H0,L2H6", layer and head from 0; empty for the frozen set.
            part: held-out, which answers once a set is frozen, or discovery, the examples that chose the heads.
            limit: how many examples at most; 0 for all.
            offset: how many examples to leave out first.
        """
        record = store.search(search)
        if not heads and record.frozen_set is None:
            raise StoreError(f"search {record.id} has no frozen set yet: name the heads")
        paired = _paired(store, record, heads or str(record.frozen_set), part, whole=True)
        return _rows(examples.flips(paired), limit, offset)

    def evaluate(search: str, heads: str, part: Side = "discovery", wait_s: float = 120) -> dict[str, Any]:
        """Accuracy of one side intact and without some heads, with gain, interval, p, fixes and harms; n tells how many count.

        What is not stored yet is evaluated by the search's model. Where n is below n_in_all, ask again for the rest.

        Args:
            search: the search's id, as list_searches gives it, or the beginning of it.
            heads: the heads that are removed together, such as "L2H0,L2H6", layer and head from 0.
            part: discovery, the examples that chose the heads, or held-out, which answers once a set is frozen.
            wait_s: seconds to wait for what has to be evaluated, 600 at most.
        """
        record = _begun(store.search(search))
        head_set, side = heads_of(record, heads), part_of(record, part)
        n = record.n_examples(side)
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
        gr.api(_answering(endpoint), api_name=name, concurrency_limit=4)


def _answering(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """An endpoint as Gradio calls it: arguments checked, a `CelError` as its one-line error, JSON where an agent asks.

    Gradio would hand an agent Python's way of writing a value. Docstring and parameters stay the endpoint's own.
    """
    signature, hints = inspect.signature(endpoint), get_type_hints(endpoint)

    @functools.wraps(endpoint)
    def safe(request: gr.Request, *given: Any) -> Any:
        try:
            arguments = signature.bind(*given).arguments
            for name, value in arguments.items():
                _require(name, value, hints[name])
            found = endpoint(**arguments)
        except CelError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return json.dumps(found, ensure_ascii=False) if request.headers.get("x-gradio-user") == "mcp" else found

    asked = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request)
    safe.__signature__ = signature.replace(parameters=[asked, *signature.parameters.values()])  # type: ignore[attr-defined]
    safe.__annotations__ = {"request": gr.Request, **endpoint.__annotations__}
    return safe


def _require(name: str, value: object, hint: object) -> None:
    """Refuse an argument of another type; Gradio passes on what it is sent."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is float and not number:
        raise ConfigError(f"{name} = {str(value)[:40]} is not a number: give one, such as 60")
    if hint is int and not (number and value == int(value) and value >= 0):  # type: ignore[operator,arg-type]
        raise ConfigError(f"{name} = {str(value)[:40]} is not a whole number: give one from 0")
    if hint not in (int, float) and not isinstance(value, str):
        raise ConfigError(f"{name} = {str(value)[:40]} is not a text: give it in quotes")


def _paired(store: Store, record: SearchRecord, heads: str, part: str, whole: bool = False) -> pd.DataFrame:
    """What is stored of one side; where `whole`, nothing less than all of it."""
    _begun(record)
    side, head_set = part_of(record, part), heads_of(record, heads)
    paired, n = store.paired(record.id, side, head_set), record.n_examples(side)
    if len(paired) < (n if whole else 1):
        raise StoreError(
            f"search {record.id}: {len(paired)} of {n} {side} examples are stored without {head_set or 'any head'}; "
            "call evaluate with these heads first"
        )
    return paired


def _begun(record: SearchRecord) -> SearchRecord:
    if not record.n_discovery:
        raise ConfigError(f"search {record.id} has no examples yet: wait until it has loaded its model")
    return record


def _rows(compared: pd.DataFrame, limit: int, offset: int) -> list[dict[str, Any]]:
    compared = compared.iloc[int(offset) :].head(int(limit) or len(compared))
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
