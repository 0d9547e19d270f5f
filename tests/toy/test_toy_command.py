"""`python -m cel_core toy`: the figures of section 3, every field, and bad input in one line."""

import json
from typing import Any

import pytest

from cel_core.cli import main
from cel_core.toy import ToyConfig, command, populate

QUICK = ["--alpha", "0.3", "--seeds", "30", "--steps", "200"]


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["toy", *arguments, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_figures_of_the_independent_simulation(capsys: pytest.CaptureFixture[str]):
    found = asked(capsys, "--alpha", "0.1", "--eta", "0.05", "--seeds", "800")
    assert (found["n_seeds"], found["n_diverged"], found["steps"], found["checkpoint"]) == (800, 0, "checkpoint", 4606)
    assert found["pr_event_predicted"] == pytest.approx(4 / 9)
    assert found["pr_event_se"] == pytest.approx((4 / 9 * 5 / 9 / 800) ** 0.5, rel=0.03)
    assert abs(found["pr_event"] - 4 / 9) < 3 * found["pr_event_se"]
    for name, predicted in (("task_a_drop", 1), ("task_b_rise", 3), ("joint_rise", 0.5)):
        spread = found[name]
        assert spread["predicted"] == predicted
        assert spread["median"] == pytest.approx(predicted, abs=0.002)
        assert predicted - 0.02 < spread["q1"] < spread["median"] < spread["q3"] < predicted + 0.002
    assert found["converged_share"] == pytest.approx(0.57, abs=0.06)
    assert found["loser_order"] == pytest.approx(4, abs=0.2) and found["loser_order_predicted"] == 4
    assert 0.40 < found["loser_over_alpha4"] < 0.52
    assert [sum(row) for row in found["winners_table"]] == [800] * 3
    assert found["features"] == ["U", "V", "W"] and found["notes"] == []


def test_the_object_is_the_populations_summary(capsys: pytest.CaptureFixture[str]):
    found = asked(capsys, *QUICK, "--first-seed", "7", "--heads", "4", "--a", "3", "--b", "0.5", "--c", "0.7", "--eta", "0.1")
    config = ToyConfig(a=3, b=0.5, c=0.7, alpha=0.3, eta=0.1, heads=4, steps=200, seed=7)
    summary = populate(config, 30).summary()
    assert (found["heads"], found["a"], found["b"], found["c"], found["first_seed"]) == (4, 3, 0.5, 0.7, 7)
    assert (found["alpha"], found["eta"], found["steps"]) == (0.3, 0.1, 200)
    assert summary.task_b_rise is not None
    assert found["task_b_rise"]["q1"] == summary.task_b_rise.q1 and found["task_b_rise"]["predicted"] == 6.75
    assert found["winners_table"] == [list(row) for row in summary.winners_table]
    assert found["pr_event"] == summary.pr_event and found["pr_event_predicted"] == 9 / 16


def test_the_report_says_the_same_to_people(capsys: pytest.CaptureFixture[str]):
    arguments = ["--alpha", "0.3", "--seeds", "60", "--heads", "2", "--steps", "converged"]
    found = asked(capsys, *arguments)
    assert main(["toy", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("60 runs of 2 heads until they converge, a = 2, b = 1, c = 1, alpha = 0.3, eta = 0.05; ")
    assert f"  Pr(E) = {found['pr_event']:.4f}, standard error {found['pr_event_se']:.4f}, predicted 0.2500" in lines
    rise = [f"{found['task_b_rise'][part]:.4f}" for part in ("q1", "median", "q3", "predicted")]
    assert ["R_B", "rises", "by", *rise] in [line.split() for line in lines]
    second = [str(row[1]) for row in found["winners_table"]]
    assert ["head", "1", *second] in [line.split() for line in lines]
    assert "converged (every feature within 0.001 of its optimum): 100.00 %" in lines
    assert f"order of the losing heads in alpha: {found['loser_order']:.3f}, predicted 4" in lines
    assert max(map(len, lines)) <= 128


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["--heads", "1"], "order of the losing heads not measured: heads 1 leaves no losing head"),
        (["--alpha", "0.45"], "order of the losing heads not measured: alpha 0.45 is too large"),
    ],
)
def test_without_an_order_the_rest_is_reported(capsys: pytest.CaptureFixture[str], arguments: list[str], note: str):
    found = asked(capsys, *QUICK, *arguments)
    assert found["loser_order"] is None and found["notes"][0].startswith(note)
    assert main(["toy", *QUICK, *arguments]) == 0
    shown = capsys.readouterr().out
    assert f"note: {note}" in shown and "alpha: not measured, predicted 4" in shown


def test_without_the_event_its_effects_are_left_empty(capsys: pytest.CaptureFixture[str]):
    found = asked(capsys, *QUICK, "--heads", "1")
    assert (found["pr_event"], found["n_event"], found["task_a_drop"], found["joint_rise"]) == (0, 0, None, None)
    assert main(["toy", *QUICK, "--heads", "1"]) == 0
    assert ["J", "rises", "by", "-", "-", "-", "-"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_diverged_runs_are_counted_and_said(capsys: pytest.CaptureFixture[str]):
    found = asked(capsys, "--alpha", "0.99", "--eta", "1.03", "--seeds", "50", "--steps", "300")
    assert 0 < found["n_diverged"] < 50
    assert found["notes"][0].startswith(f"{found['n_diverged']} of 50 runs diverged and are left out")
    assert sum(found["winners_table"][0]) == 50 - found["n_diverged"]


BAD = [
    (["--alpha", "0"], "alpha 0 is not above 0"),
    (["--alpha", "-0.1"], "alpha -0.1 is not above 0"),
    (["--alpha", "nan"], "alpha nan is not a finite number"),
    (["--eta", "nan"], "eta nan is not a finite number"),
    (["--eta", "5"], "eta 5 oscillates or diverges"),
    (["--a", "inf"], "a inf is not a finite number"),
    (["--heads", "0"], "heads 0 is not between 1 and 64"),
    (["--steps", "0"], "steps 0 is not between 1 and"),
    (["--steps", "soon"], "steps 'soon' is not a rule"),
    (["--seeds", "0"], "seeds 0 is not between 1 and"),
    (["--first-seed", "-1"], "seed -1 is not between 0 and"),
    (["--alpha", "0.001"], "alpha 0.001 with eta 0.05 needs 1.38e+08 steps"),
    (["--heads", "64", "--alpha", "0.99", "--eta", "1.03", "--seeds", "20", "--steps", "200"], "every one of 20 runs diverge"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD)
def test_bad_input_is_one_line_with_reason_and_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
):
    if "diverge" in reason and len(arguments) > 2:  # this one trains, for as long as the machine is slow
        monkeypatch.setattr(command, "QUIET_S", 60)
    assert main(["toy", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert reason in err and ": " in err.removeprefix("error: ")


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "QUIET_S", 0)
    assert main(["toy", *QUICK, "--json"]) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert "runs: 100%" in err and "order of the losers: 100%" in err
