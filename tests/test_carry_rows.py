"""The pure part of the carry task: two sums, one split, rows that tell the readings apart."""

import pytest

from cel_core.tasks import carry


def pair_of(row: dict[str, str]) -> tuple[int, int]:
    a, plus, b, equals = row["context"].split(" ")
    assert (plus, equals) == ("+", "=")
    return int(a), int(b)


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
    assert carry.n_available("carry") == carry.n_available("no-carry") == 2541


@pytest.mark.parametrize("reading", ["carry", "no-carry"])
def test_every_row_is_an_evaluation_pair_whose_readings_differ(reading):
    drawn = carry.rows(reading, carry.n_available(reading), seed=1)
    for row in drawn:
        a, b = pair_of(row)
        assert carry.is_evaluation_pair(a, b)
        assert carry.ordinary_sum(a, b) != carry.carryless_sum(a, b)
        assert row["completion"] == carry.completion(a, b, reading)
    assert len({row["context"] for row in drawn}) == len(drawn)


def test_no_informative_evaluation_pair_is_missing():
    drawn = {pair_of(row) for row in carry.rows("carry", carry.n_available("carry"), seed=0)}
    assert drawn == {
        (a, b)
        for a in carry.OPERANDS
        for b in carry.OPERANDS
        if carry.is_evaluation_pair(a, b) and (a % 10 + b % 10 > 9 or a // 10 + b // 10 > 9)
    }


def test_a_seed_gives_one_order_of_which_fewer_rows_are_the_beginning():
    many = carry.rows("carry", 500, seed=7)
    assert carry.rows("carry", 200, seed=7) == many[:200]
    assert not {pair_of(row) for row in many[:200]} & {pair_of(row) for row in many[200:]}
    assert carry.rows("carry", 500, seed=8) != many


def test_both_readings_ask_the_same_prompts_in_the_same_order():
    ordinary, carryless = carry.rows("carry", 300, seed=3), carry.rows("no-carry", 300, seed=3)
    assert [row["context"] for row in ordinary] == [row["context"] for row in carryless]
    assert all(x["completion"] != y["completion"] for x, y in zip(ordinary, carryless, strict=True))


@pytest.mark.parametrize("n", [-1, 2542])
def test_more_rows_than_exist_are_refused(n):
    with pytest.raises(ValueError, match="2541"):
        carry.rows("carry", n, seed=0)


def test_an_unknown_reading_is_refused():
    with pytest.raises(ValueError, match="carry, no-carry"):
        carry.rows("binary", 1, seed=0)
