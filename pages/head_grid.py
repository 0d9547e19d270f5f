"""The layer x head map: one cell a head, coloured by what removing it gains; blue is better without the head, orange worse.

1. The scale is symmetric around 0. It ends at the best gain, or where three of four heads' gains end where that is larger, so
   that one head the model cannot do without does not drain all others of colour; what lies beyond has the end's colour.
2. A hatched cell is a head measured on part of the examples only. After a search its number is the most it could have gained
   (`AT_MOST`), while one runs the balance so far (`SO_FAR`).
3. As a picture the map is one image with a name; every cell tells its numbers when pointed at, and the ranking beside it is the
   same in words. As switches (`switches`) its cells are buttons, pressed where a head is off; the browser moves among them.
   What is pressed is the browser's: colours that change later (`looks`) are put on the buttons that are there.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from cel_core.heads import Head, HeadSet, all_heads
from cel_core.search import Tally
from pages import formats
from pages.markup import Markup, join, tag

MAP_WIDTH_PX, MAP_HEIGHT_PX = 430, 620  # that the cells of a large model together should not exceed by much
CELL_WIDTH_PX, CELL_HEIGHT_PX = (14, 48), (11, 36)  # smallest and largest
MIN_LIMIT = 0.005
AT_MOST, SO_FAR = "at most", "so far"


class Cell(NamedTuple):
    """One head on the discovery examples, beside the intact model."""

    head: Head
    fixes: int
    harms: int
    n: int  # discovery examples in all
    measured: int  # of these

    @property
    def partial(self) -> bool:
        """Whether it was measured on part of the examples only."""
        return self.measured < self.n

    @property
    def gain(self) -> float:
        """As a fraction of all discovery examples."""
        return (self.fixes - self.harms) / self.n


def of_ranking(singles: Iterable[Tally]) -> dict[Head, Cell]:
    """The cells of a finished screening."""
    return {t.head_set.heads[0]: Cell(t.head_set.heads[0], t.fixes, t.harms, t.n, t.n if t.exact else 0) for t in singles}


def of_tallies(tallies: pd.DataFrame, n_discovery: int) -> dict[Head, Cell]:
    """The cells of what a store knows so far: head sets of one head among ``head_set, fixes, harms, n``."""
    alone = tallies[~tallies["head_set"].str.contains(",")]
    return {
        (head := Head.parse(name)): Cell(head, int(fixes), int(harms), n_discovery, int(n))
        for name, fixes, harms, n in alone.itertuples(index=False)
    }


def limit_of(cells: Iterable[Cell]) -> float:
    """Where the colour scale ends on both sides, as a fraction: by the heads measured in full, if any are."""
    known = list(cells)
    gains = np.array([cell.gain for cell in known if not cell.partial] or [cell.gain for cell in known] or [0.0])
    return max(MIN_LIMIT, float(gains.max()), float(np.quantile(np.abs(gains), 0.75)))


def picture(n_layers: int, n_heads: int, cells: Mapping[Head, Cell], marked: HeadSet, hatching: str = AT_MOST) -> Markup:
    """The map with its legend.

    Args:
        n_layers: rows, drawn with layer 0 at the bottom.
        n_heads: columns.
        cells: what is known; other heads stay empty.
        marked: the frozen set; drawn ablated, with a dot.
        hatching: what a hatched cell's number is.
    """
    limit = limit_of(cells.values())

    def drawn(head: Head) -> Markup:
        css, style, tip = _look(head, cells, limit, hatching)
        return tag("span", css=css + (" off frozen" if head in marked else ""), style=style, data_tip=tip)

    label = f"Head map: {n_layers} layers of {n_heads} heads, {len(cells)} measured; the table of single heads has the numbers"
    grid = _grid(n_layers, n_heads, drawn, role="img", aria_label=label)
    return join([grid, _axes(), legend(limit, cells.values(), hatching, {"off dot": "frozen set"} if marked else {})])


def switches(
    n_layers: int, n_heads: int, cells: Mapping[Head, Cell], frozen: HeadSet, off: HeadSet, hatching: str = AT_MOST
) -> Markup:
    """The map as switches, one button a head, pressed where the head is off.

    Args:
        n_layers: rows, drawn with layer 0 at the bottom.
        n_heads: columns.
        cells: what is known; other heads have no colour.
        frozen: heads to mark with a dot.
        off: heads that are off to begin with; afterwards the browser knows.
        hatching: what a hatched cell's number is.
    """
    limit = limit_of(cells.values())
    first = min(off, default=Head(n_layers - 1, 0))

    def drawn(head: Head) -> Markup:
        css, style, tip = _look(head, cells, limit, hatching)
        return tag(
            "button",
            type="button",
            css=css + (" frozen" if head in frozen else ""),
            style=style,
            data_tip=tip,
            data_head=head,
            aria_label=tip.replace("\n", ", "),
            aria_pressed="true" if head in off else "false",
            tabindex=0 if head == first else -1,
        )

    label = f"Switches of {n_layers} layers of {n_heads} heads; arrow keys move, space switches, with shift a range"
    grid = _grid(n_layers, n_heads, drawn, role="group", aria_label=label, data_switches=True)
    return join([grid, _axes(), legend(limit, cells.values(), hatching, _switch_marks(frozen))])


def looks(n_layers: int, n_heads: int, cells: Mapping[Head, Cell], frozen: HeadSet, hatching: str) -> Markup:
    """What the browser needs to colour switches anew: classes, style and tip of each, and the legend.

    Args:
        n_layers: rows.
        n_heads: columns.
        cells: what is known now.
        frozen: heads to mark with a dot.
        hatching: what a hatched cell's number is.
    """
    limit = limit_of(cells.values())
    seen = {str(head): _look(head, cells, limit, hatching) for head in all_heads(n_layers, n_heads)}
    for head in frozen:
        css, *rest = seen[str(head)]
        seen[str(head)] = (f"{css} frozen", *rest)
    drawn = legend(limit, cells.values(), hatching, _switch_marks(frozen))
    return tag("div", drawn, data_looks=json.dumps(seen, separators=(",", ":")))


def _grid(n_layers: int, n_heads: int, drawn: Callable[[Head], Markup], **attributes: object) -> Markup:
    """All cells with the numbers of layers and heads beside them."""
    shown: list[Markup] = []
    live = "data_switches" in attributes
    for layer in reversed(range(n_layers)):
        tip = f"Shift-click: all of layer {layer}" if live else None
        shown.append(tag("span", layer, css="ax", data_row=layer if live else None, data_tip=tip))
        shown += [drawn(Head(layer, index)) for index in range(n_heads)]
    shown.append(tag("span", css="ax"))
    for index in range(n_heads):
        tip = f"Shift-click: head {index} of every layer" if live else None
        shown.append(tag("span", index, css="axc", data_column=index if live else None, data_tip=tip))
    width, height = _cell_size(n_layers, n_heads)
    style = f"--columns:{n_heads};--cell-width:{width}px;--cell-height:{height}px"
    return tag("div", *shown, css="map", style=style, **attributes)


def _axes() -> Markup:
    return tag("div", tag("span", "↑ layer"), tag("span", "head →"), css="axes")


def _switch_marks(frozen: HeadSet) -> dict[str, str]:
    return {"off": "off"} | ({"dot": "frozen set"} if frozen else {})


def legend(limit: float, cells: Iterable[Cell], hatching: str, marks: Mapping[str, str]) -> Markup:
    """The colour scale with its ends, and what hatching and the marks (class to meaning) say."""
    cells = list(cells)
    beyond = any(cell.gain < -limit for cell in cells)
    least = join([formats.points(-limit), " and below" if beyond else ""])
    ends = tag("span", least, tag("span", css="scale"), formats.points(limit), " points", css="key")
    parts: list[object] = [ends]
    if any(cell.partial for cell in cells):
        parts.append(tag("span", tag("span", css="swatch bound"), hatching, css="key"))
    for css, meaning in marks.items():
        parts.append(tag("span", tag("span", css=f"swatch {css}"), meaning, css="key"))
    return tag("div", *parts, css="legend")


def _look(head: Head, cells: Mapping[Head, Cell], limit: float, hatching: str) -> tuple[str, str, str]:
    """Classes, style and tip of a head's cell."""
    cell = cells.get(head)
    if cell is None:
        return "cell none", "", f"{head}  {'not screened' if hatching == AT_MOST else 'not measured yet'}"
    css = ["cell", "up" if cell.gain > 0 else "down" if cell.gain < 0 else "", "bound" if cell.partial else ""]
    most, least, size = "", "", f"n = {formats.count(cell.n)}"
    if cell.partial and hatching == AT_MOST:
        most, least = "at most ", "at least "
    elif cell.partial:
        size = f"so far, {formats.count(cell.measured)} of {formats.count(cell.n)} examples"
    tip = (
        f"{head}  {most}{formats.points(cell.gain, cell.n)} points\n{most}{formats.count(cell.fixes)} fixes, "
        f"{least}{formats.count(cell.harms)} harms, {size}"
    )
    strength = round(100 * min(1.0, abs(cell.gain) / limit))
    return " ".join(filter(None, css)), f"--t:{strength}", tip


def _cell_size(n_layers: int, n_heads: int) -> Sequence[int]:
    """Width and height of a cell, px."""

    def fit(room: int, count: int, ends: tuple[int, int]) -> int:
        return max(ends[0], min(ends[1], room // count - 2))

    width = fit(MAP_WIDTH_PX, n_heads, CELL_WIDTH_PX)
    return width, min(width, fit(MAP_HEIGHT_PX, n_layers, CELL_HEIGHT_PX))
