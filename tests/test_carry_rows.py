"""The pure part of the carry task: two sums, one split, rows that tell the readings apart."""

import pytest

from cel_core.tasks import carry, find_task
from cel_core.tasks.rows import read_examples
from cel_core.tasks.split import split_examples


def pair_of(context: str) -> tuple[int, int]:
    a, plus, b, equals = context.split(" ")
    assert (plus, equals) == ("+", "=")
    return int(a), int(b)


def unordered(contexts: list[str]) -> list[frozenset[int]]:
    return [frozenset(pair_of(context)) for context in contexts]


def test_the_two_readings_of_one_prompt():
    assert carry.ordinary_sum(27, 45) == 72
    assert carry.carryless_sum(27, 45) == 62
    assert carry.prompt(27, 45) == "27 + 45 ="
    assert carry.completion(27, 45, "carry") == " 72"
    assert carry.completion(27, 45, "no-carry") == " 62"


def test_each_column_stands_alone_without_carry():
    for a in carry.OPERANDS:
        for b in carry.OPERANDS:
            columns = [(int(x) + int(y)) % 10 for x, y in zip(str(a), str(b), strict=True)]
            assert carry.completion(a, b, "no-carry") == f" {columns[0]}{columns[1]}"


def test_sums_without_carry_show_both_columns_and_ordinary_sums_may_have_three_digits():
    assert carry.completion(57, 50, "no-carry") == " 07"
    assert carry.completion(55, 55, "no-carry") == " 00"
    assert carry.completion(57, 50, "carry") == " 107"


def test_the_split_ignores_the_order_of_the_operands_and_keeps_about_two_fifths():
    pairs = [(a, b) for a in carry.OPERANDS for b in carry.OPERANDS]
    kept = {pair for pair in pairs if carry.is_evaluation_pair(*pair)}
    assert all((b, a) in kept for a, b in kept)
    assert 0.37 < len(kept) / len(pairs) < 0.43


def test_the_split_is_the_one_the_demo_model_was_trained_with():
    kept = [carry.is_evaluation_pair(a, b) for a in carry.OPERANDS for b in carry.OPERANDS]
    assert sum(kept) == 3339
    assert carry.n_available("carry") == carry.n_available("no-carry") == 1283


@pytest.mark.parametrize("reading", ["carry", "no-carry"])
def test_every_row_is_an_evaluation_pair_whose_readings_differ(reading):
    drawn = carry.rows(reading, carry.n_available(reading), seed=1)
    for row in drawn:
        a, b = pair_of(row["context"])
        assert carry.is_evaluation_pair(a, b)
        assert carry.ordinary_sum(a, b) != carry.carryless_sum(a, b)
        assert row["completion"] == carry.completion(a, b, reading)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("n", [700, 1283])
def test_no_sum_is_drawn_with_its_operands_swapped(n, seed):
    drawn = unordered([row["context"] for row in carry.rows("carry", n, seed)])
    assert len(set(drawn)) == len(drawn) == n


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sizes", [(None, None), (900, 383)])
@pytest.mark.parametrize("name", ["carry", "no-carry"])
def test_discovery_and_held_out_share_no_pair_in_either_order(name, sizes, seed):
    task = find_task(name)
    split = split_examples(task, read_examples(task, None, seed), *sizes, seed=seed)
    discovery, held_out = (set(unordered([e.context for e in side])) for side in (split.discovery, split.held_out))
    assert (len(discovery), len(held_out)) == (len(split.discovery), len(split.held_out)) == (sizes if sizes[0] else (600, 600))
    assert not discovery & held_out


def test_neither_order_of_a_pair_is_favoured_and_every_seed_asks_the_same():
    pairs = [(a, b) for a in carry.OPERANDS for b in carry.OPERANDS]
    assert all(carry.asked_order(a, b) == carry.asked_order(b, a) in ((a, b), (b, a)) for a, b in pairs)
    drawn = [{row["context"] for row in carry.rows("carry", 1283, seed)} for seed in (0, 1)]
    assert drawn[0] == drawn[1]
    falling = sum(a > b for a, b in map(pair_of, drawn[0]))
    rising = sum(a < b for a, b in map(pair_of, drawn[0]))
    assert (falling, rising) == (616, 642)


def test_no_informative_evaluation_pair_is_missing():
    drawn = unordered([row["context"] for row in carry.rows("carry", carry.n_available("carry"), seed=0)])
    assert set(drawn) == {
        frozenset((a, b))
        for a in carry.OPERANDS
        for b in carry.OPERANDS
        if carry.is_evaluation_pair(a, b) and (a % 10 + b % 10 > 9 or a // 10 + b // 10 > 9)
    }


def test_a_seed_gives_one_order_of_which_fewer_rows_are_the_beginning():
    many = carry.rows("carry", 500, seed=7)
    assert carry.rows("carry", 200, seed=7) == many[:200]
    assert carry.rows("carry", 500, seed=8) != many


def test_both_readings_ask_the_same_prompts_in_the_same_order():
    ordinary, carryless = carry.rows("carry", 300, seed=3), carry.rows("no-carry", 300, seed=3)
    assert [row["context"] for row in ordinary] == [row["context"] for row in carryless]
    assert all(x["completion"] != y["completion"] for x, y in zip(ordinary, carryless, strict=True))


@pytest.mark.parametrize("n", [-1, 1284])
def test_more_rows_than_exist_are_refused(n):
    with pytest.raises(ValueError, match="1283"):
        carry.rows("carry", n, seed=0)


def test_an_unknown_reading_is_refused():
    with pytest.raises(ValueError, match="carry, no-carry"):
        carry.rows("binary", 1, seed=0)
