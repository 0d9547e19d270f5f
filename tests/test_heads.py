import pytest

from cel_core.errors import HeadError
from cel_core.heads import INTACT, Head, HeadSet, all_heads


def test_a_head_set_reads_back_as_it_prints_whatever_the_order():
    heads = HeadSet.parse("L10H2, l2h11 L2H6,L2H6")
    assert str(heads) == "L2H6,L2H11,L10H2"
    assert HeadSet.parse(str(heads)) == heads
    assert len(heads) == 3


def test_order_is_numeric():
    assert sorted([Head(10, 0), Head(9, 11), Head(9, 2)]) == [Head(9, 2), Head(9, 11), Head(10, 0)]


def test_an_empty_text_is_the_intact_model():
    assert HeadSet.parse("  ") == INTACT
    assert str(INTACT) == ""


@pytest.mark.parametrize("text", ["L1", "H1L2", "L-1H2", "L1H2H3", "L1H99999", "L²H1", "<img>"])
def test_what_is_no_head_is_refused_with_an_example(text: str):
    with pytest.raises(HeadError, match="such as L12H3"):
        HeadSet.parse(text)


def test_a_head_beyond_the_model_is_named_with_the_range():
    with pytest.raises(HeadError, match="L3H8 is not in this model: layers go from 0 to 5, heads from 0 to 7"):
        HeadSet.parse("L0H0,L3H8").within(6, 8)


def test_all_heads_are_in_order():
    assert list(map(str, all_heads(2, 2))) == ["L0H0", "L0H1", "L1H0", "L1H1"]
