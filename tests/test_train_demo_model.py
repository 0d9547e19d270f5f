"""The script that trains the demo model: what it trains on, and what it writes."""

import sys

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from cel_core.tasks import carry
from scripts import train_demo_model


def test_no_sum_of_the_task_was_trained_on_in_either_order_or_form():
    tokenizer = train_demo_model.build_tokenizer()
    ids, labels = train_demo_model.training_set(tokenizer)
    asked = ids * (labels == train_demo_model.IGNORED)  # (batch, pos); 0 is padding
    prompts = tokenizer.batch_decode(asked, skip_special_tokens=True)
    trained = {frozenset(prompt.split(": ")[-1].removesuffix(" =").split(" + ")) for prompt in prompts}
    rows = carry.rows("carry", carry.n_available("carry"), seed=0)
    assert not trained & {frozenset(row["context"].removesuffix(" =").split(" + ")) for row in rows}
    assert len(trained) == 4095 - 1687  # all unordered pairs but those kept for evaluation


def test_the_task_has_rows_for_both_sides_of_the_check():
    assert train_demo_model.N_ROWS == carry.Carry.paper_sizes.discovery == carry.Carry.paper_sizes.held_out
    assert 2 * train_demo_model.N_ROWS <= carry.n_available("carry")


def test_a_run_writes_a_model_and_a_card_of_every_seed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(carry, "n_available", lambda _: 70)  # few rows, pool and heads, to be quick
    for name, value in (("N_ROWS", 30), ("POOL_SIZE", 2), ("MAX_HEADS", 1)):
        monkeypatch.setattr(train_demo_model, name, value)
    monkeypatch.setattr(sys, "argv", ["train", "--out", str(tmp_path), "--seeds", "3", "4", "--steps", "2"])
    train_demo_model.main()
    card = (tmp_path / "README.md").read_text()
    assert "--seeds 3 4 --steps 2" in card and "the first 30, then the\nnext 30" in card
    assert card.count("Frozen for `carry`") == 2 and card.count("| task | intact, all 70 |") == 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert card.startswith("# Demo model") and f"{model.num_parameters():,} parameters" in card
    assert AutoTokenizer.from_pretrained(tmp_path)("1+").input_ids == train_demo_model.build_tokenizer()("1+").input_ids
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["train", "--measure", str(tmp_path)])
    train_demo_model.main()
    shown = capsys.readouterr().out.partition("\n")[2].strip()  # after the line that says where the model comes from
    assert shown in card
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written


def test_a_folder_to_measure_that_is_not_there_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["train", "--measure", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="2"):
        train_demo_model.main()
    assert "is not a folder: give one that this script wrote" in capsys.readouterr().err
