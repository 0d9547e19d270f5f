"""Rankings on the discovery examples as tables: single heads, subsets of the pool, and the heads measured so far."""

from collections.abc import Mapping, Sequence

from cel_core.heads import Head, HeadSet
from cel_core.records import SearchRecord
from cel_core.search import Tally, pool_of
from pages import downloads, evidence, formats
from pages.head_grid import Cell
from pages.markup import Column, Markup, Row, filter_box, head_chips, join, signed, table, tag

NOT_RANKED = "Heads are ranked at the end of stage 1."


def singles(record: SearchRecord, tallies: Sequence[Tally]) -> Markup:
    """Every head alone, best first."""
    pool = set(pool_of(tallies, record.config.p))
    frozen = record.frozen_set or HeadSet()

    def place(head: Head) -> str:
        return "frozen set" if head in frozen else "pool" if head in pool else ""

    rows = [Row([*_numbers(rank, t), place(t.head_set.heads[0])]) for rank, t in enumerate(tallies, start=1)]
    columns = [*_tally_columns("Head"), Column("Part of")]
    said = f"{formats.count(len(rows))} heads, each alone; n = {formats.count(record.n_discovery)} discovery examples"
    return _ranking(table(columns, rows, "singles"), "singles", said, record)


def so_far(cells: Mapping[Head, Cell]) -> Markup:
    """The heads measured so far, best balance first, before there is a ranking."""
    if not cells:
        return tag("p", NOT_RANKED, css="sub empty")
    ordered = sorted(cells.values(), key=lambda cell: (cell.harms - cell.fixes, cell.harms, cell.head))
    rows = [
        Row(
            [
                tag("span", cell.head, css="chip"),
                signed(formats.points(cell.gain, cell.n), cell.gain),
                formats.count(cell.fixes),
                formats.count(cell.harms),
                f"{formats.count(cell.measured)} of {formats.count(cell.n)}",
            ]
        )
        for cell in ordered
    ]
    numbers = ("Gain so far, points", "Fixes", "Harms", "Examples measured")
    columns = [Column("Head"), *(Column(number, "n") for number in numbers)]
    end = tag("span", filter_box("so-far", "Filter by head"), css="end")
    tools = tag("div", tag("span", f"Not final. {NOT_RANKED}", css="sub"), end, css="tools")
    return join([tools, tag("div", table(columns, rows, "so-far"), css="tall")])


def subsets(record: SearchRecord, tallies: Sequence[Tally]) -> Markup:
    """Every subset of the pool, best first."""
    if not tallies:
        return tag("p", "Subsets of the pool are ranked at the end of stage 2.", css="sub empty")
    rows = [
        Row([*_numbers(rank, t), "frozen set" if t.head_set == record.frozen_set else ""])
        for rank, t in enumerate(tallies, start=1)
    ]
    said = f"{formats.count(len(rows))} subsets of 1 to {record.config.k} of the {record.config.p} heads in the pool; "
    said += f"n = {formats.count(record.n_discovery)} discovery examples. {evidence.ONE_SET_TESTED}"
    return _ranking(table([*_tally_columns("Heads"), Column("")], rows, "subsets"), "subsets", said, record)


def _tally_columns(name: str) -> list[Column]:
    numbers = ("Gain, points", "Fixes", "Harms", "Accuracy, %")
    return [Column("Rank", "n"), Column(name), *(Column(number, "n") for number in numbers)]


def _numbers(rank: int, t: Tally) -> list[object]:
    """A ranked set's cells; of one that was dropped on the way, its bounds."""
    most, least = ("", "") if t.exact else ("≤ ", "≥ ")
    return [
        rank,
        head_chips(t.head_set),
        signed(most + formats.points(t.gain, t.n), t.gain),
        most + formats.count(t.fixes),
        least + formats.count(t.harms),
        most + formats.percent(t.accuracy, t.n),
    ]


def _ranking(drawn: Markup, name: str, said: str, record: SearchRecord) -> Markup:
    end = tag("span", filter_box(name, "Filter by head"), downloads.links(record.id, name), css="end")
    return join([tag("div", tag("span", said, css="sub"), end, css="tools"), tag("div", drawn, css="tall")])
