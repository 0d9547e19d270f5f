"""The benchmark compares like with like: both ways' outcomes are equal, and its ratios are of what was counted."""

import json

import numpy as np
import pytest

from cel_core import bench
from cel_core.cli import main
from cel_core.config import SearchConfig
from cel_core.tasks import find_task
from cel_core.tasks.rows import load_rows
from tests.conftest import build_tiny

CONFIG = SearchConfig("demo", "carry", n_discovery=24, n_held_out=1)


@pytest.fixture(scope="module")
def found() -> dict:
    return bench.run(CONFIG)


def test_every_outcome_that_both_made_is_equal(found: dict):
    sweep, first, second = found["comparisons"]
    assert [one["case"] for one in found["comparisons"]] == ["full sweep", "stage 1, bounded", "stage 2, bounded"]
    for one in found["comparisons"]:
        assert one["n_differing"] == one["n_near_differing"] == 0
        assert one["n_compared"] > 0 and one["n_plain_sets"] > 0
    assert (sweep["n_sets"], sweep["n_examples"], sweep["n_evaluations"]) == (25, 6, 150)
    assert (first["n_sets"], first["plain_evaluations"]) == (25, 600)
    assert second["n_sets"] == 45 + 120
    assert second["n_evaluations"] < second["plain_evaluations"]


def test_the_plain_ways_bill_is_the_padded_requests_of_every_head_set(found: dict):
    """`27 + 45 =` is 7 tokens and its answer 1 to 4 more, the last of them never read; three layers."""
    sweep = found["comparisons"][0]
    assert 25 * 6 * 3 * 5 <= sweep["plain_token_layers"] <= 25 * 6 * 3 * 12
    assert sweep["token_layer_ratio"] == sweep["plain_token_layers"] / sweep["engine_token_layers"] > 1
    assert sweep["wall_ratio"] == sweep["plain_s"] / sweep["engine_s"]


def test_memory_and_recall_are_there(found: dict):
    assert [row["way"] for row in found["memory"]] == ["engine", "engine", "engine", "plain"]
    assert set(found["attribution"]["recall"]) == {20}  # of 24 heads
    assert 0.5 <= found["attribution"]["recall"][20] <= 1
    json.dumps(found, allow_nan=False)


def test_a_wrong_outcome_is_counted(monkeypatch):
    """The plain way made to err on one example: the comparison must say so."""
    keep = bench._Sides._keep

    def err(self, made, block):
        if made is self.plain_made:
            block.correct[:, 0] = ~block.correct[:, 0]
        keep(self, made, block)

    monkeypatch.setattr(bench._Sides, "_keep", err)
    monkeypatch.setattr(bench, "_peak_memory", lambda *_: [])
    assert all(one["n_differing"] > 0 for one in bench.run(CONFIG)["comparisons"])


def test_written_programs_are_compared_as_text(monkeypatch):
    model = build_tiny("llama", num_hidden_layers=12, max_position_embeddings=4096)
    monkeypatch.setattr(bench, "MAX_NEW_TOKENS", 4)
    task = find_task("mbpp")
    examples = [e for e in task.examples(load_rows(task, "samples")) if e.split != "prompt"][:2]
    one = bench._programs(model, task, examples)
    assert (one.n_sets, one.n_compared % 2, one.n_differing) == (12, 0, 0)
    monkeypatch.setattr(bench, "_write_plainly", lambda *_: ["other"] * 2)
    assert bench._programs(model, task, examples).n_differing > 0


def test_the_command_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(bench, "_peak_memory", lambda *_: [{"way": "engine", "n_sets": 3, "n_examples": 4, "bytes": 2**21}])
    assert main(["bench", "--model", "demo", "--task", "carry", "--rows", "8"]) == 0
    said = capsys.readouterr().out
    assert "stage 2, bounded" in said and "2 MiB: engine, 3 head sets, 4 examples" in said
    assert np.char.count(said, "\n") == 7


def test_rows_that_cannot_be_are_refused(capsys):
    assert main(["bench", "--model", "demo", "--task", "carry", "--rows", "0"]) == 2
    assert "--rows 0: take at least 1 row" in capsys.readouterr().err
