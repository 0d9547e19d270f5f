import json
import re

import pandas as pd
import pytest

from cel_core.errors import ConfigError, DataError
from cel_core.tasks import TASKS, find_task
from cel_core.tasks.arithmetic import KINDS
from cel_core.tasks.base import Row
from cel_core.tasks.hellaswag import pre
from cel_core.tasks.rows import load_rows, read_examples
from cel_core.tasks.split import split_examples


def one(task: str, **fields):
    (example,) = TASKS[task].examples([Row(fields, "rows.jsonl:1")])
    return example


def mbpp_row(task_id: int, **changes):
    fields = {"text": f"Write task {task_id}.", "code": "def f():\r\n  return 1", "task_id": task_id}
    return fields | {"test_list": [f"assert f() == {i}" for i in (1, 1, 1)]} | changes


SHOTS = [mbpp_row(number) for number in (2, 3, 4)]


# --- what a model reads, and what is right ----------------------------------------------------------------------------


def test_arithmetic_reads_the_published_forms_alike():
    plain = one("arithmetic", context="Question: What is 98 plus 45?\nAnswer:", completion=" 143")
    raw = one("arithmetic", context="\n\nQ: What is 98 plus 45?\n\nA:", completion=" 143")
    assert raw == plain
    assert (plain.continuations, plain.answer) == ((" 143",), "143")


@pytest.mark.parametrize("label", [True, 1, "1", "true", "True", "yes"])
def test_boolq_labels_in_every_form(label):
    example = one("boolq", passage="Sky -- The sky is blue.", question="is the sky blue", label=label)
    assert example.context == "Sky -- The sky is blue.\nQuestion: is the sky blue?\nAnswer:"
    assert (example.continuations, example.gold, example.answer) == ((" no", " yes"), 1, "yes")


@pytest.mark.parametrize("label", [2, "2", " 2 "])
def test_hellaswag_cleans_its_texts_and_capitalises_the_second_part(label):
    example = one(
        "hellaswag",
        activity_label="Sailing",
        ctx_a="[header] How to sail [title] Get a boat.",
        ctx_b="the  crew",
        endings=["a", "b [x] c", " d ", "e"],
        label=label,
    )
    assert example.context == "Sailing: How to sail. Get a boat. The crew"
    assert example.continuations == (" a", " b c", " d", " e")
    assert example.gold == 2


def test_pre_makes_double_blanks_single_in_one_pass():
    assert pre("  a   b [title] c ") == "a  b. c"


def test_mbpp_puts_three_worked_examples_before_the_task_and_keeps_crlf():
    (example,) = TASKS["mbpp"].examples([Row(row, "mbpp.jsonl:1") for row in [*SHOTS, mbpp_row(601)]])
    shots = [part for part in example.context.split("[DONE]\n\n")]
    assert len(shots) == 4
    assert shots[0] == (
        "You are an expert Python programmer, and here is your task: Write task 2. Your code should pass these tests:\n\n"
        "assert f() == 1\nassert f() == 1\nassert f() == 1\n[BEGIN]\ndef f():\r\n  return 1\n"
    )
    assert shots[3].endswith("assert f() == 1\n[BEGIN]\n")
    assert example.split == "train"


def test_mbpp_text_may_be_called_prompt():
    row = mbpp_row(30)
    row["prompt"] = row.pop("text")
    (example,) = TASKS["mbpp"].examples([Row(row, "x:1") for row in [*SHOTS, row]])
    assert "Write task 30." in example.context
    assert example.split == "test"


def test_mbpp_without_its_worked_examples_says_where_to_put_them():
    with pytest.raises(DataError, match=r"task_id 3, 4 is not among the rows: put them into mbpp.prompt.jsonl"):
        TASKS["mbpp"].examples([Row(row, "x:1") for row in [SHOTS[0], mbpp_row(30)]])


@pytest.mark.parametrize(
    ("task", "written", "program"),
    [
        ("mbpp", "def f():\n  return 1\n[DONE]\n[DONE]", "def f():\n  return 1\n"),
        ("mbpp", "def f(): pass", "def f(): pass"),
        ("mbpp-instruct", "def f(): pass\n```\nIt works.", "def f(): pass"),
        ("mbpp-instruct", "def f(): pass", ""),
    ],
)
def test_a_program_ends_where_its_task_says(task: str, written: str, program: str):
    assert TASKS[task].program(written) == program  # type: ignore[attr-defined]


def test_carry_and_no_carry_ask_the_same_and_want_different_answers():
    carry, no_carry = (read_examples(TASKS[name], None, seed=3) for name in ("carry", "no-carry"))
    assert [example.context for example in carry] == [example.context for example in no_carry]
    assert all(a.answer != b.answer for a, b in zip(carry, no_carry, strict=True))


# --- generated rows ---------------------------------------------------------------------------------------------------


def test_generated_arithmetic_is_right_in_all_ten_kinds():
    rows = TASKS["arithmetic"].generated_rows(seed=5)
    words = {"plus": "+", "minus": "-", "times": "*"}
    for row in rows[::37]:
        question = re.fullmatch(r"Question: What is (.*)\?\nAnswer:", row.fields["context"])[1]
        for word, sign in words.items():
            question = question.replace(word, sign)
        assert row.fields["completion"] == f" {eval(question)}"
    assert {row.fields["kind"] for row in rows} == set(KINDS)
    assert len(rows) == 20_000
    assert rows == TASKS["arithmetic"].generated_rows(seed=5)
    assert rows != TASKS["arithmetic"].generated_rows(seed=6)


# --- where rows come from ---------------------------------------------------------------------------------------------


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


BOOLQ = [{"passage": f"P{i}", "question": f"q{i}", "label": i % 2} for i in range(12)]


def test_rows_come_in_file_order_with_file_and_line(tmp_path):
    write_rows(tmp_path / "boolq.jsonl", BOOLQ)
    rows = load_rows(TASKS["boolq"], str(tmp_path))
    assert [row.fields["question"] for row in rows] == [f"q{i}" for i in range(12)]
    assert rows[3].where == "boolq.jsonl:4"


def test_parquet_reads_like_jsonl(tmp_path):
    pd.DataFrame(BOOLQ).to_parquet(tmp_path / "boolq.validation.parquet")
    rows = load_rows(TASKS["boolq"], str(tmp_path))
    assert [dict(row.fields) for row in rows] == BOOLQ
    assert {row.split for row in rows} == {"validation"}


def test_arithmetic_takes_the_kind_from_the_file(tmp_path):
    row = {"context": "Q: What is 1 plus 1?\n\nA:", "completion": " 2"}
    write_rows(tmp_path / "arithmetic" / "two_digit_addition.jsonl", [row])
    write_rows(tmp_path / "arithmetic" / "3ds.validation.jsonl", [row | {"completion": " 3"}])
    assert [e.kind for e in read_examples(TASKS["arithmetic"], str(tmp_path))] == ["3ds", "2da"]
    assert [e.kind for e in read_examples(TASKS["arithmetic"], str(tmp_path), kinds=("2da",))] == ["2da"]
    with pytest.raises(ConfigError, match="kind '9xx' is not among the rows: they have 2da, 3ds"):
        read_examples(TASKS["arithmetic"], str(tmp_path), kinds=("9xx",))


def test_the_hub_is_read_with_its_own_column_variants(tmp_path, monkeypatch):
    """A local folder in the hub's layout stands in for the hub."""
    folder = tmp_path / "super_glue"
    for split, labels in (("train", [1, 0]), ("validation", [0])):
        rows = [{"passage": f"{split} {i}", "question": "q", "idx": i, "label": label} for i, label in enumerate(labels)]
        (folder / "boolq").mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_parquet(folder / "boolq" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: boolq\n  data_files:\n  - split: train\n    path: boolq/train-*\n"
        "  - split: validation\n    path: boolq/validation-*\n---\n"
    )
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    task = TASKS["boolq"]
    monkeypatch.setattr(type(task), "hub", task.hub._replace(path=str(folder)))
    examples = read_examples(task, None)
    assert [(e.split, e.gold) for e in examples] == [("train", 1), ("train", 0), ("validation", 0)]


def test_arithmetic_files_of_the_hub_are_read_by_address(tmp_path, monkeypatch):
    write_rows(tmp_path / "two_digit_addition.jsonl", [{"context": "\n\nQ: What is 1 plus 1?\n\nA:", "completion": " 2"}])
    task = TASKS["arithmetic"]
    monkeypatch.setattr(type(task), "hub", task.hub._replace(data_files=(str(tmp_path / "two_digit_addition.jsonl"),)))
    (example,) = read_examples(task, None)
    assert (example.context, example.kind) == ("Question: What is 1 plus 1?\nAnswer:", "2da")


def test_a_hub_that_cannot_be_reached_is_one_line_with_a_remedy(monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach the Hub\nlong story")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(DataError) as caught:
        load_rows(TASKS["hellaswag"], None)
    assert "\n" not in str(caught.value)
    assert "give a folder with --data" in str(caught.value)


@pytest.mark.parametrize("name", ["boolq", "hellaswag", "mbpp", "mbpp-instruct", "arithmetic"])
def test_samples_are_there_for_every_benchmark(name: str):
    split = split_examples(TASKS[name], read_examples(TASKS[name], "samples"))
    assert min(len(split.discovery), len(split.held_out)) >= 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"passage": "p", "question": "q"}', "boolq.jsonl:2: field 'label' is missing"),
        ('{"passage": 7, "question": "q", "label": 1}', "boolq.jsonl:2: field 'passage' is int, not text"),
        ('{"passage": "p", "question": "q", "label": 7}', "boolq.jsonl:2: label 7 is neither true nor false"),
        ("{broken", "boolq.jsonl:2: not JSON"),
        ("[1, 2]", "boolq.jsonl:2: a list, not an object"),
    ],
)
def test_a_fault_in_a_row_is_named_with_file_and_line(tmp_path, line: str, message: str):
    (tmp_path / "boolq.jsonl").write_text(json.dumps(BOOLQ[0]) + "\n" + line + "\n")
    with pytest.raises(DataError) as caught:
        read_examples(TASKS["boolq"], str(tmp_path))
    assert str(caught.value).startswith(message)


def test_missing_folders_and_files_are_said(tmp_path):
    with pytest.raises(DataError, match="does not exist: give a folder with --data"):
        load_rows(TASKS["boolq"], str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="has no boolq.jsonl"):
        load_rows(TASKS["boolq"], str(tmp_path))
    (tmp_path / "boolq.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match="boolq.parquet cannot be read"):
        load_rows(TASKS["boolq"], str(tmp_path))
    (tmp_path / "hellaswag.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="hellaswag.jsonl cannot be read"):
        load_rows(TASKS["hellaswag"], str(tmp_path))


def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(ConfigError, match="task 'chess' is unknown: choose one of arithmetic, boolq"):
        find_task("chess")


# --- the two sides ----------------------------------------------------------------------------------------------------


def boolq_examples(n: int, split: str = "", start: int = 0):
    rows = [Row({"passage": f"P{i}", "question": "q", "label": i % 2}, f"x:{i}", split) for i in range(start, start + n)]
    return TASKS["boolq"].examples(rows)


def keys(examples):
    return [example.key for example in examples]


def test_sides_from_one_file_are_disjoint_and_follow_from_the_seed():
    task, examples = TASKS["boolq"], boolq_examples(40)
    split = split_examples(task, examples, 15, 20, seed=1)
    assert (len(split.discovery), len(split.held_out)) == (15, 20)
    assert not set(keys(split.discovery)) & set(keys(split.held_out))
    assert split == split_examples(task, examples[::-1], 15, 20, seed=1)
    assert keys(split.discovery) != keys(split_examples(task, examples, 15, 20, seed=2).discovery)


def test_duplicates_never_land_on_both_sides_and_are_counted():
    split = split_examples(TASKS["boolq"], boolq_examples(10) * 3)
    assert len(set(keys(split.discovery + split.held_out))) == 10 == len(split.discovery + split.held_out)
    assert split.notes[0] == "20 of 30 rows left out: their content occurs more than once"


def test_official_splits_are_kept_and_what_stands_in_both_is_held_out():
    examples = boolq_examples(10, "train") + boolq_examples(6, "validation", start=7)
    split = split_examples(TASKS["boolq"], examples)
    assert {e.split for e in split.discovery} == {"train"}
    assert (len(split.discovery), len(split.held_out)) == (7, 6)


def test_mbpp_keeps_its_official_splits():
    rows = [Row(mbpp_row(number), f"x:{number}") for number in (2, 3, 4, 5, 11, 12, 510, 511, 600, 601, 974)]
    split = split_examples(TASKS["mbpp"], TASKS["mbpp"].examples(rows))
    assert {e.split for e in split.discovery} == {"train"} and len(split.discovery) == 2
    assert {e.split for e in split.held_out} == {"test"} and len(split.held_out) == 3


def test_default_sizes_are_capped_by_what_is_there_and_say_so():
    split = split_examples(TASKS["boolq"], boolq_examples(527))
    assert (len(split.discovery), len(split.held_out)) == (263, 264)
    assert split.notes == [
        "discovery: 263 examples, as many as the rows allow (the paper takes 2,000)",
        "held-out: 264 examples, as many as the rows allow (the paper takes 3,270)",
    ]


@pytest.mark.parametrize(
    ("discovery", "held_out", "message"),
    [
        (0, 5, "--discovery 0: a search needs at least 1"),
        (5, -1, "--held-out -1: a search needs at least 1"),
        (20, None, "--discovery 20: only 9 examples can be had"),
        (5, 6, "--held-out 6: only 5 examples can be had"),
    ],
)
def test_sizes_that_cannot_be_met_are_refused(discovery, held_out, message):
    with pytest.raises(ConfigError, match=message):
        split_examples(TASKS["boolq"], boolq_examples(10), discovery, held_out)


def test_one_example_cannot_fill_two_sides():
    with pytest.raises(ConfigError, match="1 distinct examples cannot fill"):
        split_examples(TASKS["boolq"], boolq_examples(1) * 2)
