"""How far a search's result can be trusted: what was compared on which examples, the answers' balance, and each kind alone."""

from collections.abc import Sequence

import pandas as pd

from cel_core import statistics
from cel_core.records import SearchRecord
from cel_core.search import n_subsets
from pages import examples, formats
from pages.examples import Shares
from pages.markup import Column, Markup, Row, join, signed, table, tag

ONE_SET_TESTED = "Only the frozen set was tested on held-out examples."


def show(record: SearchRecord, paired: pd.DataFrame | None) -> Markup:
    """The evidence of a search, as far as there is any."""
    if record.held_out is None or paired is None:
        text = "Evidence is shown once the frozen set has been compared on the held-out examples."
        return tag("p", text, css="sub empty")
    parts = [_both_sides(record), tag("p", _reading(record), css="sub empty")]
    balance, kinds = examples.answer_balance(paired), examples.kinds(paired)
    parts += [_balance(balance, record.held_out.n)] if balance else []
    parts += [_kinds(kinds)] if kinds else []
    return tag("div", *parts, css="tall")


def _both_sides(record: SearchRecord) -> Markup:
    found = record.held_out
    assert found is not None and record.discovery_gain is not None
    rows = [
        Row(
            [
                "Discovery: chosen on these",
                formats.count(record.n_discovery),
                signed(formats.points(record.discovery_gain, record.n_discovery), record.discovery_gain),
                "",
                "",
                "",
                "",
            ]
        ),
        Row(
            [
                "Held-out: took no part in the choice",
                formats.count(found.n),
                signed(formats.points(found.gain, found.n), found.gain),
                formats.interval(found.interval, found.n),
                formats.count(found.fixes),
                formats.count(found.harms),
                formats.p_value(found.mcnemar_p),
            ]
        ),
    ]
    columns = [Column("Frozen set on"), Column("n", "n"), Column("Gain, points", "n"), Column("95 % interval", "n")]
    columns += [Column("Fixes", "n"), Column("Harms", "n"), Column("McNemar p", "n")]
    return table(columns, rows, "sides")


def _reading(record: SearchRecord) -> str:
    subsets, heads = n_subsets(record.config.p, record.config.k), record.n_screened
    return (
        f"The discovery gain is the best of {formats.count(heads)} heads and {formats.count(subsets)} subsets on the same "
        f"examples and flatters: the held-out gain is the fair figure. {ONE_SET_TESTED}"
    )


def _balance(balance: Sequence[Shares], n: int) -> Markup:
    rows = [
        Row(
            [
                s.answer,
                *(formats.percent(share, n) for share in (s.gold, s.intact, s.ablated)),
                formats.points(s.ablated - s.intact, n),
            ]
        )
        for s in balance
    ]
    columns = [
        Column("Answer"),
        Column("Gold, %", "n"),
        Column("Intact, %", "n"),
        Column("Ablated, %", "n"),
        Column("Shift, points", "n"),
    ]
    return join([_title(f"Predicted answers, held-out, n = {formats.count(n)}"), table(columns, rows, "balance")])


def _kinds(kinds: Sequence[tuple[str, int, int, int, int]]) -> Markup:
    rows: list[Row] = []
    for kind, n, intact, fixes, harms in kinds:
        gain = statistics.gain(fixes, harms, n)
        accuracies = [formats.percent(intact / n), formats.percent((intact + fixes - harms) / n)]
        gain_shown = signed(formats.points(gain), gain)
        interval = formats.interval(statistics.gain_interval(fixes, harms, n))
        rows.append(
            Row([kind, formats.count(n), *accuracies, gain_shown, interval, formats.count(fixes), formats.count(harms)])
        )
    columns = [
        Column("Kind"),
        Column("n", "n"),
        Column("Intact, %", "n"),
        Column("Ablated, %", "n"),
        Column("Gain, points", "n"),
    ]
    columns += [Column("95 % interval", "n"), Column("Fixes", "n"), Column("Harms", "n")]
    return join([_title("Each kind by itself, held-out"), table(columns, rows, "kinds")])


def _title(text: str) -> Markup:
    return tag("div", text, css="k padded")
