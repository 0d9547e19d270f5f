"""The form of a new search: what it makes of the answers, and what it refuses."""

import pytest

from cel_core.config import DEMO, SearchConfig
from cel_core.errors import ConfigError
from pages import new_search
from pages.new_search import Form

FILLED = Form("demo", "carry", "default", [], 600, 600, 10, 3, 0, 0, "auto", "auto", False, False, False)


def test_the_form_as_it_opens_is_the_demo_search():
    assert new_search.config_of(FILLED) == SearchConfig("demo", "carry") == DEMO


def test_answers_become_the_plan(tmp_path):
    answers = FILLED._replace(
        model=" org/model ", task="arithmetic", data=str(tmp_path), kinds=["2da"], n_discovery=60.0, n_held_out=1000, p=4, k=2
    )
    config = new_search.config_of(answers)
    assert config == SearchConfig("org/model", "arithmetic", str(tmp_path), ("2da",), n_discovery=60, n_held_out=None, p=4, k=2)


def test_a_shortlist_makes_the_screen_approximate():
    assert new_search.config_of(FILLED._replace(shortlist=12)).shortlist == 12
    assert new_search.config_of(FILLED._replace(shortlist=None)).shortlist is None


def test_kinds_and_permissions_of_another_task_are_left_out():
    config = new_search.config_of(FILLED._replace(kinds=["2da"], allow_code_execution=True))
    assert config.kinds == () and not config.allow_code_execution


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"model": " "}, "model is empty"),
        ({"model": None}, "model is empty"),
        ({"model": "a\nb"}, "control characters"),
        ({"model": "./nowhere"}, "does not exist on this machine"),
        ({"task": "chess"}, "task 'chess' is unknown"),
        ({"data": "/nowhere"}, "is not a folder"),
        ({"n_discovery": None}, "discovery examples is empty"),
        ({"n_held_out": 0}, "held-out examples = 0"),
        ({"p": 2.5}, "p = 2.5 is not a whole number"),
        ({"p": float("nan")}, "is not a whole number"),
        ({"p": float("inf")}, "is not a whole number"),
        ({"k": "<b>"}, "is not a whole number"),
        ({"seed": -1}, "seed = -1"),
        ({"shortlist": 2.5}, "shortlist = 2.5 is not a whole number"),
        ({"shortlist": 9}, "a shortlist of 9 is smaller than p = 10"),
        ({"k": 11}, "k = 11 is larger than p = 10"),
        ({"device": "tpu"}, "device 'tpu' is unknown"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"task": "arithmetic", "kinds": ["9xx"]}, "kind '9xx' is unknown"),
        ({"task": "mbpp"}, "runs code that the model writes"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(answers, said):
    with pytest.raises(ConfigError, match=said) as refused:
        new_search.config_of(FILLED._replace(**answers))
    assert "\n" not in str(refused.value)


def test_code_runs_only_where_it_is_allowed():
    assert new_search.config_of(FILLED._replace(task="mbpp", allow_code_execution=True)).allow_code_execution


def test_an_estimate_is_one_line_with_units():
    found = {"n_discovery": 1000, "n_held_out": 500, "n_evaluations": 191_000, "seconds": 95.0, "weight_bytes": 6_150_000_000}
    shown = new_search.show_estimate(found)
    assert all(text in shown for text in ("1,000 discovery", "at most 191,000 evaluations", "about 2 min", "weights 6.2 GB"))
    assert "not known before" in new_search.show_estimate(found | {"seconds": None})


def test_only_local_searches_are_estimated_unasked():
    assert new_search.is_local(SearchConfig("demo", "carry"))
    assert not new_search.is_local(SearchConfig("org/model", "carry"))
    assert not new_search.is_local(SearchConfig("demo", "boolq"))
    assert new_search.is_local(SearchConfig("demo", "boolq", "samples"))
