import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cel_core.statistics import gain, gain_interval, mcnemar_p, relative_error_reduction

counts = st.integers(0, 40)


def test_relative_error_reduction_gives_the_papers_figures():
    assert round(100 * relative_error_reduction(0.8350 - 0.7040, 0.7040), 2) == 44.26
    assert round(100 * relative_error_reduction(0.5200 - 0.5040, 0.5040), 2) == 3.23


def test_a_model_without_errors_has_none_to_reduce():
    assert math.isnan(relative_error_reduction(0.0, 1.0))


def test_exact_mcnemar_for_twelve_fixes_and_three_harms():
    assert round(mcnemar_p(12, 3), 4) == 0.0352


@given(counts, counts)
def test_mcnemar_is_the_binomial_sum(fixes: int, harms: int):
    flips, fewer = fixes + harms, min(fixes, harms)
    expected = min(1.0, 2 * sum(math.comb(flips, i) for i in range(fewer + 1)) / 2**flips)
    assert mcnemar_p(fixes, harms) == pytest.approx(expected)


def test_gain_is_the_difference_of_accuracies():
    assert gain(159, 28, 1000) == pytest.approx(0.131)


@given(counts, counts, st.integers(0, 100))
def test_the_interval_is_ordered_and_mirrors_when_fixes_and_harms_swap(fixes: int, harms: int, others: int):
    n = fixes + harms + others + 1
    low, high = gain_interval(fixes, harms, n)
    assert -1 <= low < high <= 1
    mirrored = gain_interval(harms, fixes, n)
    assert (mirrored.low, mirrored.high) == pytest.approx((-high, -low))


def test_the_interval_covers_the_true_gain_about_as_often_as_it_says():
    # an independent computation: the exact coverage by enumeration for n = 40, true fix rate 0.15, harm rate 0.05
    n, fix, harm = 40, 0.15, 0.05
    covered = 0.0
    for fixes in range(n + 1):
        for harms in range(n - fixes + 1):
            ways = math.factorial(n) // (math.factorial(fixes) * math.factorial(harms) * math.factorial(n - fixes - harms))
            low, high = gain_interval(fixes, harms, n)
            if low <= fix - harm <= high:
                covered += ways * fix**fixes * harm**harms * (1 - fix - harm) ** (n - fixes - harms)
    assert 0.93 < covered < 0.98
