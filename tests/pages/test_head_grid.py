"""The head map: colours, bounds and marks."""

import html
import json
import re

import pandas as pd

from cel_core.heads import Head, HeadSet
from cel_core.search import Tally
from pages import head_grid
from pages.head_grid import Cell


def tally(head: Head, fixes: int, harms: int, exact: bool = True) -> Tally:
    return Tally(HeadSet((head,)), fixes, harms, 50 + fixes - harms, 100, exact)


def cell_of(drawn: str, head: str) -> str:
    (found,) = re.findall(rf'<span class="[^"]*"[^>]*data-tip="{head} [^>]*>', drawn)
    return found


def test_colour_follows_the_sign_of_the_gain_and_is_symmetric():
    cells = head_grid.of_ranking([tally(Head(0, 0), 10, 0), tally(Head(0, 1), 0, 10), tally(Head(1, 0), 3, 3)])
    drawn = head_grid.picture(2, 2, cells, HeadSet())
    assert 'class="cell up" style="--t:100"' in cell_of(drawn, "L0H0")
    assert 'class="cell down" style="--t:100"' in cell_of(drawn, "L0H1")
    assert 'class="cell" style="--t:0"' in cell_of(drawn, "L1H0")
    assert 'class="cell none"' in cell_of(drawn, "L1H1")


def test_a_dropped_head_is_hatched_and_called_a_bound():
    cells = head_grid.of_ranking([tally(Head(0, 0), 10, 0), tally(Head(0, 1), 4, 1, exact=False)])
    found = cell_of(head_grid.picture(1, 2, cells, HeadSet()), "L0H1")
    assert "bound" in found and "at most +3.0 points" in found
    assert "at most 4 fixes, at least 1 harms" in found  # the harms are those seen until it was dropped


def test_a_head_measured_in_part_is_hatched_while_the_search_runs():
    rows = [("L0H0", 2, 1, 10), ("L0H1", 3, 0, 20), ("L0H0,L0H1", 9, 0, 20)]
    tallies = pd.DataFrame(rows, columns=["head_set", "fixes", "harms", "n"])
    cells = head_grid.of_tallies(tallies, 20)
    assert cells == {Head(0, 0): Cell(Head(0, 0), 2, 1, 20, 10), Head(0, 1): Cell(Head(0, 1), 3, 0, 20, 20)}
    assert cells[Head(0, 0)].partial and not cells[Head(0, 1)].partial
    assert cells[Head(0, 0)].gain == 0.05
    drawn = head_grid.picture(1, 3, cells, HeadSet(), head_grid.SO_FAR)
    assert "2 fixes, 1 harms, so far, 10 of 20 examples" in cell_of(drawn, "L0H0") and "so far" not in cell_of(drawn, "L0H1")
    assert "not measured yet" in cell_of(drawn, "L0H2")
    assert "not screened" in cell_of(head_grid.picture(1, 3, cells, HeadSet()), "L0H2")  # and never will be


def test_before_any_head_is_measured_in_full_the_scale_follows_what_is_known():
    assert head_grid.limit_of([Cell(Head(0, i), i, 0, 100, 50) for i in range(5)]) == 0.04


def test_one_ruinous_head_does_not_drain_the_others_of_colour():
    cells = [Cell(Head(0, i), 3, 0, 100, 100) for i in range(9)] + [Cell(Head(1, 0), 0, 90, 100, 100)]
    assert head_grid.limit_of(cells) == 0.03
    assert "−3.0 and below" in head_grid.legend(0.03, cells, head_grid.AT_MOST, {})


def test_the_frozen_set_is_outlined():
    cells = head_grid.of_ranking([tally(Head(0, 0), 1, 0), tally(Head(0, 1), 0, 1)])
    drawn = head_grid.picture(1, 2, cells, HeadSet((Head(0, 1),)))
    assert "off" in cell_of(drawn, "L0H1") and "off" not in cell_of(drawn, "L0H0")
    assert "frozen" in cell_of(drawn, "L0H1") and 'class="swatch off dot"' in drawn  # a dot means the frozen set on every page


def test_switches_coloured_anew_look_as_if_drawn_anew():
    cells = head_grid.of_ranking([tally(Head(0, 0), 9, 1), tally(Head(0, 1), 4, 1, exact=False), tally(Head(1, 0), 0, 2)])
    frozen = HeadSet((Head(0, 1),))
    drawn = head_grid.switches(2, 2, cells, frozen, HeadSet())
    anew = head_grid.looks(2, 2, cells, frozen, head_grid.AT_MOST)
    (said,) = re.findall('data-looks="([^"]*)"', anew)
    looks = json.loads(html.unescape(said))
    assert list(looks) == ["L0H0", "L0H1", "L1H0", "L1H1"]
    for css, style, tip in looks.values():
        assert f'<button class="{css}" type="button" style="{style}" data-tip="{tip}"' in drawn
    assert looks["L0H1"][0] == "cell up bound frozen"
    assert anew.partition(">")[2].removesuffix("</div>") in drawn


def test_large_models_stay_within_the_page():
    for n_layers, n_heads in ((36, 16), (28, 24)):
        drawn = head_grid.picture(n_layers, n_heads, {}, HeadSet())
        width, height = (int(re.search(rf"--cell-{side}:(\d+)px", drawn)[1]) for side in ("width", "height"))
        assert 24 + n_heads * (width + 2) <= 500 and n_layers * (height + 2) <= 640
        assert width >= 12 and height >= 11


def test_switches_are_buttons_of_which_one_is_reached_by_tab():
    cells = head_grid.of_ranking([tally(Head(0, 0), 1, 0), tally(Head(0, 1), 0, 1)])
    drawn = head_grid.switches(2, 2, cells, HeadSet((Head(0, 0),)), HeadSet((Head(0, 1),)))
    buttons = re.findall(r"<button[^>]*>", drawn)
    assert [re.search(r'data-head="(\w+)"', b)[1] for b in buttons] == ["L1H0", "L1H1", "L0H0", "L0H1"]
    assert [re.search(r'data-head="(\w+)"', b)[1] for b in buttons if 'aria-pressed="true"' in b] == ["L0H1"]
    assert [re.search(r'data-head="(\w+)"', b)[1] for b in buttons if 'tabindex="0"' in b] == ["L0H1"]
    assert [re.search(r'data-head="(\w+)"', b)[1] for b in buttons if " frozen" in b] == ["L0H0"]
