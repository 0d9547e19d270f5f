"""HTML of the project's own: the one place where text from models, data sets and users becomes markup, always escaped."""

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cel_core.heads import HeadSet
from cel_core.records import SearchRecord, Status


class Markup(str):
    """Text that is HTML already; everything else is escaped on its way into a page."""


class Column(NamedTuple):
    """One column of a table."""

    title: str
    kind: str = ""  # "n" for numbers, aligned right; "w" for text that may wrap
    tip: str = ""  # what it means, said when pointed at


class Row(NamedTuple):
    """One row of a table: cells, and what a click on it means."""

    cells: Sequence[object]
    href: str = ""  # where a click leads
    key: str = ""  # what a click picks
    group: str = ""  # what the buttons above the table filter by
    selected: bool = False


def escape(value: object) -> str:
    """A value as HTML text; `Markup` passes as it is."""
    return value if isinstance(value, Markup) else html.escape(str(value))


def tag(name: str, *content: object, css: str = "", **attributes: object) -> Markup:
    """One element; ``data_key=`` becomes ``data-key=``, True an attribute without value, None and False nothing."""
    shown = f' class="{html.escape(css)}"' if css else ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            shown += f" {key.replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
    return Markup(f"<{name}{shown}>{''.join(map(escape, content))}</{name}>")


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Several pieces as one."""
    return Markup(between.join(map(escape, parts)))


def head_chips(head_set: HeadSet | None) -> Markup:
    """The heads of a set as chips."""
    return tag("span", *(tag("span", head, css="chip on") for head in head_set or ()), css="chips")


def status_chip(record: SearchRecord) -> Markup:
    """Where a search stands, in one word."""
    return tag("span", str(record.status), css=f"status {record.status}")


def signed(text: str, value: float) -> Markup:
    """A difference in its colour: blue above zero, orange below."""
    return tag("span", text, css="gain" if value > 0 else "harm" if value < 0 else "")


def figure(label: object, *value: object, unit: object = "", below: object = "", css: str = "") -> Markup:
    """One number of a headline: its label, the number, its unit, and a line below."""
    parts = [tag("div", label, css="k"), tag("div", *value, tag("span", " ", unit, css="u") if unit else "", css=f"v {css}")]
    return tag("div", *parts, *([tag("div", below, css="sub")] if below else []))


def notice(title: str, *lines: object, css: str = "") -> Markup:
    """A card that says one thing: an empty state, a failure with its remedy, a finding in words."""
    return tag("div", tag("b", title), *(tag("p", line) for line in lines), css=f"card notice {css}", role="status")


def term(text: object, tip: str) -> Markup:
    """A word with its meaning, said when it is pointed at or reached by keyboard."""
    return tag("span", text, css="term", tabindex=0, data_tip=tip)


def command(text: str) -> Markup:
    """A command to type."""
    return tag("code", text, css="command")


def progress(done: int, total: int, label: str) -> Markup:
    """A progress bar."""
    share = min(1.0, done / total) if total else 0.0
    bar = tag("i", style=f"width:{100 * share:.2f}%")
    return tag(
        "div",
        bar,
        css="prog" if total else "prog unknown",
        role="progressbar",
        aria_label=label,
        aria_valuemin=0,
        aria_valuemax=100,
        aria_valuenow=round(100 * share),
    )


def table(columns: Sequence[Column], rows: Sequence[Row], name: str, empty: str = "") -> Markup:
    """A table that can be sorted by its heads and, with a filter box that names it, searched; rows open or pick something."""
    if not rows:
        return tag("p", empty, css="sub empty")
    head = tag(
        "tr",
        *(
            tag("th", tag("button", c.title, type="button", data_tip=c.tip or None) if c.title else "", css=c.kind, scope="col")
            for c in columns
        ),
    )
    openings = [f'<td class="{c.kind}">' if c.kind else "<td>" for c in columns]
    body = join(
        tag(
            "tr",
            Markup("".join([f"{o}{escape(cell)}</td>" for o, cell in zip(openings, row.cells, strict=True)])),
            css="sel" if row.selected else "",
            data_href=row.href or None,
            data_key=row.key or None,
            data_group=row.group or None,
            tabindex=0 if row.key else None,
        )
        for row in rows
    )
    inner = tag("table", tag("thead", head), tag("tbody", body), data_table=name)
    return tag("div", inner, tag("p", "Nothing fits the filter.", css="sub empty", hidden=True), css="scroll")


def filter_box(name: str, placeholder: str) -> Markup:
    """A box that filters the table of that name as one types."""
    return Markup(
        f'<input class="filter" type="search" data-filter="{html.escape(name)}" placeholder="{html.escape(placeholder)}" '
        f'aria-label="{html.escape(placeholder)}" autocomplete="off" spellcheck="false">'
    )


def button(text: object, press: str = "", css: str = "btn", **attributes: object) -> Markup:
    """A button; with `press`, one that tells the server that name (`layout.PRESS`)."""
    return tag("button", text, type="button", css=css, data_press=press or None, **attributes)


def is_live(record: SearchRecord) -> bool:
    """Whether a search may still move by itself."""
    return record.status in (Status.RUNNING, Status.QUEUED)
