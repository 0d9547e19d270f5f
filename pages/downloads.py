"""The tables behind the pages as CSV: ``/csv/SEARCH/TABLE``, straight from the store, wherever that lies.

Tables: singles and subsets (rankings on discovery examples), discovery and held-out (each example's outcome, intact and without
the frozen set). Held-out outcomes of a search whose set is not frozen are refused by the store.
"""

from collections.abc import Sequence

import pandas as pd
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cel_core.errors import CelError, StoreError
from cel_core.records import Part
from cel_core.search import Tally
from cel_core.store import Store
from pages.markup import Markup, tag

TABLES = ("singles", "subsets", "discovery", "held-out")
PAIRED_COLUMNS = [
    "position", "key", "kind", "context", "gold", "answer", "intact_correct", "ablated_correct", "intact_answer",
    "ablated_answer", "intact_margin_nats", "ablated_margin_nats", "intact_detail", "ablated_detail",
]  # fmt: skip


def link(search: str, table: str, text: str = "CSV") -> Markup:
    """A link that downloads one table of a search."""
    return tag("a", text, css="csv", href=f"/csv/{search}/{table}", download=True, title=f"Download the table {table} as CSV")


def frame_of(store: Store, search: str, table: str) -> pd.DataFrame:
    """One table of a search.

    Raises:
        StoreError: there is no such search or table, or it is sealed.
    """
    record = store.search(search)
    if table == "singles":
        return tallies_frame(store.ranking(record.id, 1))
    if table == "subsets":
        return tallies_frame(store.ranking(record.id, 2))
    if table in (Part.DISCOVERY, Part.HELD_OUT):
        if record.frozen_set is None:
            raise StoreError(f"search {record.id} has no frozen set yet: its outcomes can be compared once it has")
        return store.paired(record.id, Part(table), record.frozen_set)[PAIRED_COLUMNS]
    raise StoreError(f"there is no table '{table[:40]}': choose one of {', '.join(TABLES)}")


def tallies_frame(tallies: Sequence[Tally]) -> pd.DataFrame:
    """A ranking as a table, best first; where `exact` is false, gain and fixes are at most and harms at least."""
    columns = ["rank", "heads", "n_heads", "gain", "accuracy", "fixes", "harms", "n_correct", "n", "exact"]
    rows = [
        (rank, str(t.head_set), len(t.head_set), t.gain, t.accuracy, t.fixes, t.harms, t.n_correct, t.n, t.exact)
        for rank, t in enumerate(tallies, start=1)
    ]
    return pd.DataFrame(rows, columns=columns)


def routes(store: Store) -> list[BaseRoute]:
    """The download routes, for the application that serves the pages."""

    def csv(request: Request) -> Response:
        search, table = request.path_params["search"], request.path_params["table"]
        try:
            frame = frame_of(store, search, table)
        except CelError as error:
            return PlainTextResponse(str(error), status_code=404)
        name = f"cel-{store.search(search).id}-{table}.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(frame.to_csv(index=False), media_type="text/csv; charset=utf-8", headers=headers)

    return [Route("/csv/{search}/{table}", csv)]
