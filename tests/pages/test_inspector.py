"""One example in full: its verdicts, its bars, and the heads that are ablated."""

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import pytest

from cel_core.heads import Head, HeadSet
from cel_core.records import Part, SearchRecord
from cel_core.store import Store
from pages import inspector

Searches = tuple[Store, dict[str, str]]


def of(searches: Searches, name: str) -> tuple[SearchRecord, list[Any]]:
    store, ids = searches
    record = store.search(ids[name])
    assert record.frozen_set is not None
    return record, list(store.paired(record.id, Part.HELD_OUT, record.frozen_set).itertuples())


def shown(record: SearchRecord, example: Any, head_set: HeadSet | None = None) -> str:
    return inspector.show(record, example, Part.HELD_OUT, head_set or record.frozen_set or HeadSet())


def widths(drawn: str) -> list[float]:
    return [float(width) for width in re.findall(r"width:([\d.]+)%", drawn)]


def test_the_longer_bar_is_the_likelier_answer(searches: Searches):
    for name in ("boolq", "large"):
        record, rows = of(searches, name)
        for row in rows[:20]:
            pairs = zip(row.intact_logprobs_nats, row.ablated_logprobs_nats, strict=True)
            logprobs = [value for pair in pairs for value in pair]
            drawn = widths(shown(record, row))
            assert len(drawn) == len(logprobs)
            assert sorted(range(len(drawn)), key=drawn.__getitem__) == sorted(range(len(drawn)), key=logprobs.__getitem__)


def test_bars_show_what_decides_a_choice_scored_per_character(searches: Searches):
    record, _ = of(searches, "boolq")
    record = dataclasses.replace(record, config=dataclasses.replace(record.config, task="hellaswag"))
    example = SimpleNamespace(
        **{"position": 0, "kind": "", "context": "A man", "tests": (), "gold": 1, "answer": " sleeps on a long chair"},
        continuations=(" runs", " sleeps on a long chair"),
        **{"intact_answer": "1", "intact_correct": True, "intact_margin_nats": 1.5, "intact_logprobs_nats": (-10.0, -22.0)},
        **{
            "ablated_answer": "0",
            "ablated_correct": False,
            "ablated_margin_nats": -0.5,
            "ablated_logprobs_nats": (-6.0, -44.0),
        },
        **{"intact_detail": "", "ablated_detail": ""},
    )
    drawn = shown(record, example)
    assert "Log-probability of each choice per character" in drawn
    assert re.findall(r'</i></span><span class="sub nb">(.*?)</span>', drawn) == ["−2.50", "−1.50", "−1.00", "−2.00"]
    assert widths(drawn) == pytest.approx([0.0, 40.0, 60.0, 20.0])


def test_a_wrong_answer_in_words_says_that_scoring_read_no_further(searches: Searches):
    record, rows = of(searches, "large")
    wrong = next(row for row in rows if not row.intact_correct and row.ablated_correct)
    assert shown(record, wrong).count("begins with") == shown(record, wrong).count("and wrong from there on") == 1
    _, choices = of(searches, "boolq")
    assert not any("begins with" in shown(of(searches, "boolq")[0], row) for row in choices)


def test_the_ablated_heads_are_named_and_of_many_the_first_six(searches: Searches):
    record, rows = of(searches, "large")
    assert "ablated: L0H1, L2H3<" in shown(record, rows[0], HeadSet((Head(0, 1), Head(2, 3))))
    assert "ablated: L1H0, L1H1, L1H2, L1H3, L1H4, L1H5 and 3 more<" in shown(
        record, rows[0], HeadSet(tuple(Head(1, index) for index in range(9)))
    )
    assert "no head ablated" in inspector.show(record, rows[0], Part.HELD_OUT, HeadSet())


def test_hostile_text_stays_text(searches: Searches):
    record, rows = of(searches, "large")
    hostile = next(row for row in rows if "onerror" in row.context)
    assert "<img" not in shown(record, hostile) and "&lt;img" in shown(record, hostile)


def test_the_gold_answers_probability_is_a_share_of_the_whole_bar(searches: Searches):
    record, rows = of(searches, "large")
    row = rows[0]._replace(intact_logprobs_nats=[-0.6931472], ablated_logprobs_nats=[-2.302585])
    assert widths(shown(record, row)) == [50.0, 10.0]
    assert "50.0 %, −0.69" in shown(record, row) and "10.0 %, −2.30" in shown(record, row)
