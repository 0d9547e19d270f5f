"""Numbers as a reader sees them."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from cel_core.statistics import Interval
from pages import formats


def test_minus_is_a_true_minus_and_zero_has_no_sign():
    assert formats.points(-0.025) == "−2.5"
    assert formats.points(0.131) == "+13.1"
    assert formats.points(0.0) == formats.points(-0.0) == formats.points(-0.0001) == "0.0"


def test_second_decimal_appears_when_examples_can_carry_it():
    assert formats.points(0.0129, 10_042) == "+1.29"
    assert formats.points(0.0129, 1_999) == "+1.3"
    assert formats.percent(0.7575, 10_042) == "75.75"


def test_interval_has_both_ends():
    assert formats.interval(Interval(-0.0218, 0.0714)) == "[−2.2, 7.1]"


@pytest.mark.parametrize(("p", "shown"), [(0.03515625, "0.035"), (2.1e-22, "2.1e−22"), (0.00004, "4e−5"), (1.0, "1")])
def test_p_values_have_two_digits(p: float, shown: str):
    assert formats.p_value(p) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "under 1 s"), (61.5, "62 s"), (2460, "41 min"), (7500, "2 h 5 min"), (7200, "2 h"), (200_000, "2 d 7 h")],
)
def test_durations_have_one_or_two_units(seconds: float, shown: str):
    assert formats.duration(seconds) == shown


def test_age_counts_back_from_now():
    now = datetime.now(UTC)
    assert formats.age(now) == "now"
    assert formats.age(now - timedelta(minutes=4, seconds=5)) == "4 min"
    assert formats.age(now - timedelta(days=12, hours=1)) == "12 d"


def test_missing_numbers_are_dashes():
    assert formats.percent(math.nan) == formats.nats(math.nan) == "–"


@pytest.mark.parametrize(
    ("spec", "name"), [("HuggingFaceTB/SmolLM3-3B", "SmolLM3-3B"), ("/models/a.gguf", "a.gguf"), ("demo", "demo"), ("/", "/")]
)
def test_a_model_is_called_by_its_own_name(spec: str, name: str):
    assert formats.model_name(spec) == name
