"""Flips, answers and shares, from outcomes as the store gives them."""

import pandas as pd
import pytest

from cel_core.records import Part
from cel_core.store import Store
from pages import examples

Searches = tuple[Store, dict[str, str]]


@pytest.fixture
def paired(searches: Searches) -> pd.DataFrame:
    store, ids = searches
    record = store.search(ids["large"])
    assert record.frozen_set is not None
    return store.paired(record.id, Part.HELD_OUT, record.frozen_set)


def test_flips_are_exactly_the_fixes_and_harms_of_the_headline(searches: Searches, paired: pd.DataFrame):
    store, ids = searches
    held_out = store.search(ids["large"]).held_out
    assert held_out is not None
    found = examples.flips(paired)
    assert ((found["flip"] == "fix").sum(), (found["flip"] == "harm").sum()) == (held_out.fixes, held_out.harms)
    assert found["key"].tolist() == [key for key in paired["key"] if key in set(found["key"])]


def test_kinds_add_up_to_the_whole(searches: Searches, paired: pd.DataFrame):
    store, ids = searches
    held_out = store.search(ids["large"]).held_out
    assert held_out is not None
    found = examples.kinds(paired)
    assert [kind for kind, *_ in found] == ["4da", "4ds"]
    assert [sum(column) for column in list(zip(*found, strict=True))[1:]] == [
        held_out.n,
        held_out.intact_correct,
        held_out.fixes,
        held_out.harms,
    ]


def test_balance_is_of_choices_by_their_text_and_adds_up_to_one(searches: Searches, paired: pd.DataFrame):
    store, ids = searches
    record = store.search(ids["boolq"])
    assert record.frozen_set is not None
    found = examples.answer_balance(store.paired(record.id, Part.HELD_OUT, record.frozen_set))
    assert [share.answer for share in found] == ["no", "yes"]
    for column in ("gold", "intact", "ablated"):
        assert sum(getattr(share, column) for share in found) == pytest.approx(1)
    assert examples.answer_balance(paired) == []


def test_a_choice_is_shown_by_its_text(searches: Searches):
    store, ids = searches
    record = store.search(ids["boolq"])
    assert record.frozen_set is not None
    row = next(store.paired(record.id, Part.HELD_OUT, record.frozen_set).itertuples())
    assert examples.answer_text(row, "1") == "yes" and examples.gold_text(row) in ("no", "yes")
    assert examples.answer_text(row, "7") == "7"


def test_hostile_text_stays_text(searches: Searches, paired: pd.DataFrame):
    record = searches[0].search(searches[1]["large"])
    assert paired["context"].str.contains("onerror").any()
    assert "<img" not in examples.flips_table(record, examples.flips(paired), "flips")


def test_a_forged_key_picks_nothing(paired: pd.DataFrame):
    assert examples.pick(paired, "' OR 1=1 --") is None
    assert examples.pick(paired, paired["key"].iloc[3]).key == paired["key"].iloc[3]


def test_every_example_is_a_fix_a_harm_or_unchanged(paired: pd.DataFrame):
    found = examples.compared(paired)
    sizes = found["flip"].value_counts()
    assert sizes.sum() == len(paired) and sizes["fix"] + sizes["harm"] == len(examples.flips(paired))
    assert "flip" not in paired.columns


def test_the_filter_wants_every_word_somewhere(paired: pd.DataFrame):
    found = examples.compared(paired)
    assert examples.matching(found, "")["key"].tolist() == found["key"].tolist()
    hits = examples.matching(found, "PLUS onerror")
    assert 0 < len(hits) < len(found) and all("plus" in text and "onerror" in text for text in hits["context"])
    assert not len(examples.matching(found, "plus .*"))  # words, not patterns
