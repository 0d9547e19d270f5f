"""The layer x head map: one cell a head, coloured by what removing it gains; blue is better without the head, orange worse.

1. The scale is symmetric around 0. It ends at the best gain, or at a quarter of the heads' spread where that is larger, so that
   one head the model cannot do without does not drain all others of colour; what lies beyond has the end's colour.
2. A hatched cell is a head measured on part of the examples only. After a search its number is the most it could have gained
   (`AT_MOST`), while one runs the balance so far (`SO_FAR`).
3. As a picture the map is one image with a name; every cell tells its numbers when pointed at, and the ranking beside it is the
   same in words.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from cel_core.heads import Head, HeadSet
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
    """Where the colour scale ends on both sides, as a fraction."""
    gains = np.array([cell.gain for cell in cells if not cell.partial] or [0.0])
    return max(MIN_LIMIT, float(gains.max()), float(np.quantile(np.abs(gains), 0.75)))


def picture(n_layers: int, n_heads: int, cells: Mapping[Head, Cell], marked: HeadSet, hatching: str = AT_MOST) -> Markup:
    """The map with its legend.

    Args:
        n_layers: rows, drawn with layer 0 at the bottom.
        n_heads: columns.
        cells: what is known; other heads stay empty.
        marked: heads to outline, such as the frozen set.
        hatching: what a hatched cell's number is.
    """
    limit = limit_of(cells.values())
    drawn: list[Markup] = []
    for layer in reversed(range(n_layers)):
        drawn.append(tag("span", layer, css="ax"))
        drawn += [_cell(Head(layer, index), cells, limit, marked, hatching) for index in range(n_heads)]
    drawn.append(tag("span", css="ax"))
    drawn += [tag("span", index, css="axc") for index in range(n_heads)]
    width, height = _cell_size(n_layers, n_heads)
    label = f"Head map: {n_layers} layers of {n_heads} heads, {len(cells)} measured; the table of single heads has the numbers"
    style = f"--columns:{n_heads};--cell-width:{width}px;--cell-height:{height}px"
    grid = tag("div", *drawn, css="map", style=style, role="img", aria_label=label)
    axis = tag("div", tag("span", "↑ layer"), tag("span", "head →"), css="axes")
    return join([grid, axis, legend(limit, cells.values(), hatching, bool(marked))])


def legend(limit: float, cells: Iterable[Cell], hatching: str, marked: bool) -> Markup:
    """The colour scale with its ends, and what hatching and outline mean."""
    cells = list(cells)
    beyond = any(cell.gain < -limit for cell in cells)
    parts: list[object] = [
        tag("span", formats.points(-limit), " and below" if beyond else ""),
        tag("span", css="scale"),
        tag("span", formats.points(limit), " points"),
    ]
    if any(cell.partial for cell in cells):
        parts += [tag("span", css="swatch bound"), tag("span", hatching)]
    if marked:
        parts += [tag("span", css="swatch frozen"), tag("span", "frozen set")]
    return tag("div", *parts, css="legend")


def _cell(head: Head, cells: Mapping[Head, Cell], limit: float, marked: HeadSet, hatching: str) -> Markup:
    cell = cells.get(head)
    if cell is None:
        return tag("span", css="cell none", data_tip=f"{head}  not measured yet")
    css = ["cell", "up" if cell.gain > 0 else "down" if cell.gain < 0 else ""]
    css += ["bound"] if cell.partial else []
    css += ["off"] if head in marked else []
    note = f" {hatching}" if cell.partial else ""
    tip = (
        f"{head}  {formats.points(cell.gain, cell.n)} points{note}\n{formats.count(cell.fixes)} fixes, "
        f"{formats.count(cell.harms)} harms{note}, n = {formats.count(cell.n)}"
    )
    strength = round(100 * min(1.0, abs(cell.gain) / limit))
    return tag("span", css=" ".join(filter(None, css)), style=f"--t:{strength}", data_tip=tip)


def _cell_size(n_layers: int, n_heads: int) -> Sequence[int]:
    """Width and height of a cell, px."""

    def fit(room: int, count: int, ends: tuple[int, int]) -> int:
        return max(ends[0], min(ends[1], room // count - 2))

    width = fit(MAP_WIDTH_PX, n_heads, CELL_WIDTH_PX)
    return width, min(width, fit(MAP_HEIGHT_PX, n_layers, CELL_HEIGHT_PX))
