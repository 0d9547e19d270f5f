"""Text that comes from outside stays text."""

from types import SimpleNamespace

import pytest

from pages import layout
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


@pytest.mark.parametrize("sent", [None, [], 1, "x", {}, {"name": 3}, {"name": None}, {"name": "\ud800"}, {"name": "a\nb"}])
def test_whatever_the_browser_sends_with_an_event_is_a_word_or_nothing(sent: object):
    assert layout.told(SimpleNamespace(_data=sent), "name") == ""  # type: ignore[arg-type]
    assert layout.told(SimpleNamespace(_data={"name": "stop"}), "name") == "stop"  # type: ignore[arg-type]


def test_an_error_is_parted_at_its_own_colon():
    for what, remedy in (
        ("model 'hub:xx' cannot be read (Repo id: at most 96: 'hub: xx')", "check its name"),
        ("bundle 'x.zip' is damaged or no bundle (Unterminated string: line 2)", "export the search again"),
        ("k = 12 is larger than p = 10", "a subset cannot have more heads than the pool"),
        ("the model's rows aren't there", "give others"),
    ):
        assert layout.in_two(f"{what}: {remedy}") == (what, remedy)
    assert layout.in_two("all of it") == ("all of it", "")
