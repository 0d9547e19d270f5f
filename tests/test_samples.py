"""The project's own sample rows: fields, balance, and MBPP solutions that run."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parent.parent / "data" / "samples"
N_ROWS = {"boolq.jsonl": 80, "hellaswag.jsonl": 80, "mbpp.jsonl": 40, "mbpp.prompt.jsonl": 3}
FIELDS = {
    "boolq.jsonl": {"question": str, "passage": str, "idx": int, "label": bool},
    "hellaswag.jsonl": {
        "ind": int,
        "activity_label": str,
        "ctx_a": str,
        "ctx_b": str,
        "ctx": str,
        "split": str,
        "split_type": str,
        "label": int,
        "endings": list,
        "source_id": str,
    },
    "mbpp.jsonl": {
        "text": str,
        "code": str,
        "task_id": int,
        "test_setup_code": str,
        "test_list": list,
        "challenge_test_list": list,
    },
}
FIELDS["mbpp.prompt.jsonl"] = FIELDS["mbpp.jsonl"]
IDS = {"boolq.jsonl": "idx", "hellaswag.jsonl": "ind", "mbpp.jsonl": "task_id", "mbpp.prompt.jsonl": "task_id"}
FILES = sorted(N_ROWS)
MBPP_TIMEOUT_S = 60

# Reads MBPP rows from stdin; for each, runs the solution as it is and with the tested function's body replaced
# by `return None`. Prints, a row, how many of the asserts passed in either case.
MBPP_RUNNER = """
import ast, json, sys

def passed(source, tests):
    scope = {}
    exec(source, scope)
    n_passed = 0
    for test in tests:
        try:
            exec(test, scope)
            n_passed += 1
        except Exception:
            pass
    return n_passed

def hollow(source, name):
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(functions) == 1, name
    functions[0].body = ast.parse("return None").body
    return ast.unparse(tree)

results = []
for row in json.load(sys.stdin):
    tests = row["test_list"]
    whole = passed(row["code"], tests)
    results.append([row["task_id"], whole, passed(hollow(row["code"], row["function"]), tests)])
print(json.dumps(results))
"""


def load(name: str) -> list[dict]:
    text = (SAMPLES / name).read_bytes().decode("utf-8")
    assert text.endswith("\n") and "\r" not in text, "one object a line; line ends of the code are escaped"
    return [json.loads(line) for line in text[:-1].split("\n")]


def function_name(row: dict) -> str:
    """The one function that all asserts of an MBPP row call."""
    names = {match.group(1) for test in row["test_list"] if (match := re.match(r"assert (\w+)\(", test))}
    assert len(names) == 1, row["test_list"]
    return names.pop()


def mbpp_rows() -> list[dict]:
    return load("mbpp.jsonl") + load("mbpp.prompt.jsonl")


@pytest.fixture(scope="module")
def mbpp_results() -> dict[int, tuple[int, int]]:
    """By task_id: asserts passed by the solution, and by the solution without its body."""
    rows = [{**row, "function": function_name(row)} for row in mbpp_rows()]
    done = subprocess.run(
        [sys.executable, "-I", "-c", MBPP_RUNNER],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        timeout=MBPP_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return {task_id: (whole, hollow) for task_id, whole, hollow in json.loads(done.stdout)}


@pytest.mark.parametrize("name", FILES)
def test_files_have_the_announced_number_of_rows(name):
    assert len(load(name)) == N_ROWS[name]


@pytest.mark.parametrize("name", FILES)
def test_rows_have_exactly_the_benchmark_fields(name):
    for row in load(name):
        assert {field: type(value) for field, value in row.items()} == FIELDS[name]


@pytest.mark.parametrize("name", FILES)
def test_no_row_occurs_twice_by_identifier_or_content(name):
    rows = load(name)
    assert len({row[IDS[name]] for row in rows}) == len(rows)
    ignored = {IDS[name], "source_id"}
    contents = {json.dumps({k: v for k, v in row.items() if k not in ignored}, sort_keys=True) for row in rows}
    assert len(contents) == len(rows)


@pytest.mark.parametrize(
    ("name", "field"),
    [("boolq.jsonl", "question"), ("boolq.jsonl", "passage"), ("hellaswag.jsonl", "ctx"), ("mbpp.jsonl", "text")],
)
def test_no_question_context_or_task_text_is_used_twice(name, field):
    counts = Counter(row[field].casefold() for row in load(name))
    assert [text for text, n in counts.items() if n > 1] == []


@pytest.mark.parametrize("name", FILES)
def test_texts_have_no_stray_blanks(name):
    for row in load(name):
        texts = [value for field, value in row.items() if isinstance(value, str) and field != "code"]
        texts += [item for value in row.values() if isinstance(value, list) for item in value]
        for text in texts:
            assert text == text.strip() and ("  " not in text or text.startswith("assert ")), text


def test_boolq_questions_and_passages_have_the_benchmark_form():
    for row in load("boolq.jsonl"):
        assert row["question"] == row["question"].lower() and "?" not in row["question"]
        title, dashes, text = row["passage"].partition(" -- ")
        assert title and dashes and text[-1] == "."
        assert 2 <= len(re.findall(r"\.(?= [A-Z]|$)", text)) <= 4, text


def test_boolq_is_balanced_as_a_whole_and_in_every_ten_rows():
    labels = [row["label"] for row in load("boolq.jsonl")]
    assert 0.4 <= sum(labels) / len(labels) <= 0.6
    for start in range(0, len(labels), 10):
        assert 4 <= sum(labels[start : start + 10]) <= 6


def test_hellaswag_context_is_its_two_parts_joined():
    for row in load("hellaswag.jsonl"):
        assert row["ctx"] == row["ctx_a"] + (" " + row["ctx_b"] if row["ctx_b"] else "")
        assert not row["ctx_b"] or row["ctx_b"][0].islower()
        assert (row["split"], row["split_type"]) == ("val", "indomain")
        assert re.fullmatch(r"samples~\d+", row["source_id"])


def test_hellaswag_endings_are_four_different_sentences_that_fit_their_context():
    for row in load("hellaswag.jsonl"):
        endings = row["endings"]
        assert len(endings) == len(set(endings)) == 4
        for ending in endings:
            assert ending.endswith(".")
            # a sentence begun in ctx_b goes on in lower case; without one a new sentence starts
            assert ending[0].islower() == bool(row["ctx_b"]), ending


def test_hellaswag_labels_are_balanced():
    rows = load("hellaswag.jsonl")
    counts = Counter(row["label"] for row in rows)
    assert set(counts) == {0, 1, 2, 3}
    assert all(0.2 <= n / len(rows) <= 0.3 for n in counts.values()), counts


def test_hellaswag_right_ending_is_not_given_away_by_its_length():
    rows = load("hellaswag.jsonl")
    right = [len(row["endings"][row["label"]]) for row in rows]
    wrong = [[len(e) for i, e in enumerate(row["endings"]) if i != row["label"]] for row in rows]
    share_longest = sum(r >= max(w) for r, w in zip(right, wrong, strict=True)) / len(rows)
    share_strictly_longest = sum(r > max(w) for r, w in zip(right, wrong, strict=True)) / len(rows)
    assert 0.15 <= share_strictly_longest <= share_longest <= 0.35
    mean_wrong = sum(sum(w) / 3 for w in wrong) / len(rows)
    assert abs(sum(right) / len(rows) - mean_wrong) < 2  # characters


def test_mbpp_task_ids_fall_into_the_official_splits():
    ids = [row["task_id"] for row in load("mbpp.jsonl")]
    assert sum(11 <= i <= 510 for i in ids) == 20
    assert sum(601 <= i <= 974 for i in ids) == 20
    assert [row["task_id"] for row in load("mbpp.prompt.jsonl")] == [2, 3, 4]


def test_mbpp_worked_examples_are_not_among_the_tasks():
    texts = {row["text"] for row in load("mbpp.jsonl")}
    assert all(row["text"] not in texts for row in load("mbpp.prompt.jsonl"))


def test_mbpp_code_has_crlf_line_ends_only():
    for row in mbpp_rows():
        code = row["code"]
        assert code.count("\r\n") == code.count("\n") == code.count("\r") >= 1


def test_mbpp_function_name_is_seen_in_the_asserts_only():
    for row in mbpp_rows():
        assert row["text"].startswith("Write a function to ") and row["text"].endswith(".")
        assert function_name(row) not in row["text"]


def test_mbpp_rows_have_three_asserts_and_nothing_to_set_up():
    for row in mbpp_rows():
        assert len(row["test_list"]) == len(set(row["test_list"])) == 3
        assert (row["test_setup_code"], row["challenge_test_list"]) == ("", [])


def test_mbpp_solutions_pass_their_three_asserts(mbpp_results):
    assert len(mbpp_results) == 43
    assert {task_id: whole for task_id, (whole, _) in mbpp_results.items() if whole != 3} == {}


def test_mbpp_asserts_fail_without_the_function_body(mbpp_results):
    assert [task_id for task_id, (_, hollow) in mbpp_results.items() if hollow == 3] == []
