"""What pages show, to carry away: tables as CSV or Parquet (``/tables/SEARCH/TABLE.csv``), a search as ``/bundles/SEARCH.zip``.

Tables: singles and subsets (rankings on discovery examples), discovery and held-out (each example's outcome, intact and without
the heads that ``?heads=`` names, or the frozen set). All come straight from the store, wherever that lies. Held-out outcomes of
a search whose set is not frozen are refused by the store.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

import pandas as pd
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cel_core import bundle
from cel_core.errors import CelError, StoreError
from cel_core.heads import HeadSet
from cel_core.records import Part
from cel_core.search import Tally
from cel_core.store import Store
from pages.markup import Markup, join, tag

TABLES = ("singles", "subsets", "discovery", "held-out")
PAIRED_COLUMNS = [
    "position", "key", "kind", "context", "gold", "answer", "intact_correct", "ablated_correct", "intact_answer",
    "ablated_answer", "intact_margin_nats", "ablated_margin_nats", "intact_detail", "ablated_detail",
]  # fmt: skip
MAX_NAMED = 3  # heads that a file's name tells


class Format(NamedTuple):
    """A form in which tables come down."""

    title: str
    media_type: str
    write: Callable[[pd.DataFrame], str | bytes]


FORMATS = {
    "csv": Format("CSV", "text/csv; charset=utf-8", lambda frame: frame.to_csv(index=False)),
    "parquet": Format("Parquet", "application/vnd.apache.parquet", lambda frame: frame.to_parquet(index=False)),
}


def links(search: str, table: str, query: Mapping[str, str] | None = None, of: str = "") -> Markup:
    """Links that download one table of a search in each format.

    Args:
        search: its id, or "toy".
        table: the table's name.
        query: what else the address says.
        of: what a reader calls the table, where not by its name.
    """
    asked = f"?{urlencode(query)}" if query else ""
    return join(
        tag(
            "a",
            form.title,
            css="csv",
            href=f"/tables/{search}/{table}.{ending}{asked}",
            download=True,
            title=f"Download {of or f'the table {table}'} as {form.title}",
        )
        for ending, form in FORMATS.items()
    )


def frame_of(store: Store, search: str, table: str, heads: str | None = None) -> pd.DataFrame:
    """One table of a search.

    Args:
        store: the store.
        search: the search.
        table: one of `TABLES`.
        heads: of a side, the heads to compare without; None for the frozen set, "" for none.

    Raises:
        CelError: there is no such search, table or head, or it is sealed.
    """
    record = store.search(search)
    if table == "singles":
        return tallies_frame(store.ranking(record.id, 1))
    if table == "subsets":
        return tallies_frame(store.ranking(record.id, 2))
    if table not in tuple(Part):
        raise StoreError(f"there is no table '{table[:40]}': choose one of {', '.join(TABLES)}")
    if not record.n_discovery:
        raise StoreError(f"search {record.id} has no examples yet: wait until it has loaded its model")
    head_set = record.frozen_set if heads is None else HeadSet.parse(heads)
    if head_set is None:
        raise StoreError(f"search {record.id} has no frozen set yet: name the heads to compare without, as in ?heads=L0H1")
    head_set.within(record.model["n_layers"], record.model["n_heads"])
    return store.paired(record.id, Part(table), head_set)[PAIRED_COLUMNS]


def tallies_frame(tallies: Sequence[Tally]) -> pd.DataFrame:
    """A ranking as a table, best first; where `exact` is false, gain and fixes are at most and harms at least."""
    columns = ["rank", "heads", "n_heads", "gain", "accuracy", "fixes", "harms", "n_correct", "n", "exact"]
    rows = [
        (rank, str(t.head_set), len(t.head_set), t.gain, t.accuracy, t.fixes, t.harms, t.n_correct, t.n, t.exact)
        for rank, t in enumerate(tallies, start=1)
    ]
    return pd.DataFrame(rows, columns=columns)


def answer(name: str, ending: str, find: Callable[[], pd.DataFrame]) -> Response:
    """A table as a file.

    Args:
        name: of the file, without its ending.
        ending: the format.
        find: gives the table, or raises the `CelError` that is answered in its place.
    """
    if ending not in FORMATS:
        return PlainTextResponse(f"there is no format '{ending[:40]}': choose {' or '.join(FORMATS)}", status_code=404)
    try:
        content = FORMATS[ending].write(find())
    except CelError as error:
        return PlainTextResponse(str(error), status_code=404)
    return _file(content, f"{name}.{ending}", FORMATS[ending].media_type)


def routes(store: Store) -> list[BaseRoute]:
    """The download routes, for the application that serves the pages."""

    def table(request: Request) -> Response:
        search, name = request.path_params["search"], request.path_params["table"]
        heads = request.query_params.get("heads")
        try:
            file = f"cel-{store.search(search).id}-{name}{_named(heads)}"
        except CelError as error:
            return PlainTextResponse(str(error), status_code=404)
        return answer(file, request.path_params["ending"], lambda: frame_of(store, search, name, heads))

    def whole(request: Request) -> Response:
        try:
            found, file = store.bundle(request.path_params["search"]), io.BytesIO()
            bundle.write(found, file)
        except CelError as error:
            return PlainTextResponse(str(error), status_code=404)
        return _file(file.getvalue(), bundle.file_name(found.record.id), "application/zip")

    return [Route("/tables/{search}/{table}.{ending}", table), Route("/bundles/{search}.zip", whole)]


def _named(heads: str | None) -> str:
    """What a file's name says of the heads."""
    if heads is None:
        return ""
    head_set = HeadSet.parse(heads)
    return f"-{len(head_set)}-heads" if len(head_set) > MAX_NAMED else "-" + ("-".join(map(str, head_set)) or "intact")


def _file(content: str | bytes, name: str, media_type: str) -> Response:
    return Response(content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})
