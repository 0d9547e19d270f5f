"""Text that comes from outside stays text."""

from pages.markup import Column, Markup, Row, filter_box, join, notice, table, tag
from tests.pages.made_up import HOSTILE


def test_text_is_escaped_everywhere_and_markup_is_not():
    drawn = join([tag("p", HOSTILE, title=HOSTILE), notice(HOSTILE, HOSTILE), filter_box(HOSTILE, HOSTILE)])
    drawn = join([drawn, table([Column(HOSTILE)], [Row([HOSTILE], href=HOSTILE, key=HOSTILE, group=HOSTILE)], HOSTILE)])
    assert "<img" not in drawn and 'onerror="' not in drawn
    assert tag("p", tag("b", "x")) == "<p><b>x</b></p>"
    assert tag("p", Markup("<i>")) == "<p><i></p>"


def test_attributes_that_are_absent_leave_no_trace():
    assert tag("a", "x", href=None, download=True, hidden=False) == "<a download>x</a>"


def test_an_empty_table_says_so():
    assert "Nothing here." in table([Column("A")], [], "t", "Nothing here.")
