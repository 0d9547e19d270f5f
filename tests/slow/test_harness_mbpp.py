"""MBPP as lm-evaluation-harness runs it: the same prompts, the same text written and cut, the same decision on a program."""

from collections.abc import Iterator
from pathlib import Path

import evaluate
import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM

from cel_core import evaluation
from cel_core.engine import PackedEngine
from cel_core.evaluation import Evaluator
from cel_core.heads import INTACT
from cel_core.models import Model
from cel_core.sandbox import run_program
from cel_core.tasks import TASKS, Example
from cel_core.tasks.mbpp import MAX_NEW_TOKENS, Mbpp
from cel_core.tasks.rows import load_rows
from tests.slow.conftest import WORKED_EXAMPLES
from tests.slow.harness import CodeEval, harness_task

N_TOKENS = 48  # written by both sides; the protocol's 256 take five times as long
TASK = TASKS["mbpp"]
assert isinstance(TASK, Mbpp)


@pytest.fixture(scope="module", autouse=True)
def code_eval() -> Iterator[None]:
    """The harness's task file asks the hub for code_eval when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "load", lambda name: {"code_eval": CodeEval()}[name])
        yield


@pytest.fixture(scope="module")
def examples(rows: Path) -> list[Example]:
    return TASK.examples(load_rows(TASK, str(rows)))


@pytest.fixture(scope="module")
def task(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> ConfigurableTask:
    """The harness's task over the same ten rows, writing fewer tokens."""
    settings = {"until": ["[DONE]"], "do_sample": False, "max_gen_toks": N_TOKENS}
    return harness_task("mbpp/mbpp.yaml", rows / "mbpp.jsonl", tmp_path_factory.mktemp("h"), generation_kwargs=settings)


def test_prompts_are_the_harness_s_byte_for_byte(shared: Path, tmp_path: Path, scratch: Path):
    lines = (shared / "data" / "mbpp.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "mbpp.jsonl").write_bytes(b"".join(lines[:4] + lines[4::8]))  # the first rows hold the worked examples
    found = TASK.examples(load_rows(TASK, str(tmp_path)))
    instances = harness_task("mbpp/mbpp.yaml", tmp_path / "mbpp.jsonl", scratch).instances
    expected = [instance.args[0] for instance in instances if instance.doc["task_id"] not in WORKED_EXAMPLES]
    assert [example.context for example in found] == expected
    assert len(expected) > 100
    assert all(prompt.count("\r\n") >= 9 and prompt.endswith("[BEGIN]\n") for prompt in expected)


def test_stop_string_and_length_are_the_harness_s(rows: Path, scratch: Path, lm: HFLM):
    [instance, *_] = harness_task("mbpp/mbpp.yaml", rows / "mbpp.jsonl", scratch).instances
    assert instance.args[1] == {"until": [TASK.stop], "do_sample": False}
    assert lm.max_gen_toks == MAX_NEW_TOKENS


@pytest.mark.parametrize("chat_template", [False, True])
def test_prompts_of_the_instruct_variant_are_the_harness_s(
    chat_template: bool, rows: Path, scratch: Path, smollm2: Model, engine: PackedEngine, lm: HFLM
):
    task = TASKS["mbpp-instruct"]
    evaluator = Evaluator(smollm2, task, chat_template, allow_code_execution=True, engine=engine)
    instances = harness_task(
        "mbpp/mbpp_instruct.yaml", rows / "mbpp.jsonl", scratch, lm.apply_chat_template if chat_template else None
    ).instances
    found = [evaluator.rendered(example) for example in task.examples(load_rows(task, str(rows)))]
    assert found == [instance.args[0] for instance in instances]


def test_programs_and_their_verdicts_are_the_harness_s(
    task: ConfigurableTask,
    examples: list[Example],
    smollm2: Model,
    engine: PackedEngine,
    lm: HFLM,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(evaluation, "MAX_NEW_TOKENS", N_TOKENS)
    evaluator = Evaluator(smollm2, TASK, allow_code_execution=True, engine=engine)
    [outcomes] = evaluator.outcomes([INTACT], examples)
    expected = lm.generate_until(task.instances, disable_tqdm=True)
    assert outcomes.answer[0].tolist() == expected
    verdicts = [
        task.process_results(instance.doc, [text])["pass_at_1"] for instance, text in zip(task.instances, expected, strict=True)
    ]
    assert outcomes.correct[0].tolist() == verdicts
    assert verdicts == [True] * 4 + [False] * 6  # the ten tasks hold both
    ended = [len(lm.tok_encode(text)) < N_TOKENS - 1 for text in expected]
    assert ended == [True] * 8 + [False] * 2  # and both ways to end, before [DONE] and by length


def test_gold_programs_pass_here_and_there(task: ConfigurableTask, examples: list[Example]):
    assert sum("\r\n" in example.answer for example in examples) > 5
    for instance, example in zip(task.instances, examples, strict=True):
        assert run_program(example.answer, example.tests).passed
        assert task.process_results(instance.doc, [example.answer])["pass_at_1"] == 1


RIGHT = "def smallest_num(xs):\n  return min(xs)\n"
PROGRAMS = {
    "nothing": ("", False),
    "no such function": ("def smallest(xs):\n  return min(xs)\n", False),
    "wrong result": ("def smallest_num(xs):\n  return max(xs)\n", False),
    "right for two of three": ("def smallest_num(xs):\n  return 1\n", False),
    "syntax error": ("def smallest_num(xs) return min(xs)", False),
    "the stop string left in": (RIGHT + "[DONE]", False),
    "leaves at once": (RIGHT + "import sys\nsys.exit(0)\n", False),
    "leaves in the test": ("def smallest_num(xs):\n  raise SystemExit(0)\n", False),
    "raises no Exception": (RIGHT + "raise KeyboardInterrupt\n", False),
    "recursion without end": ("def smallest_num(xs):\n  return smallest_num(xs)\n", False),
    "loop without end": ("def smallest_num(xs):\n  while True: pass\n", False),
    "reads its input": (RIGHT + "input()\n", False),
    "no final line end": (RIGHT.rstrip(), True),
    "line ends of Windows": (RIGHT.replace("\n", "\r\n"), True),
    "prints": (RIGHT + "print('smallest', smallest_num([2, 1]))\n", True),
    "is not the main module": (RIGHT + "if __name__ == '__main__':\n  raise ValueError\n", True),
    "imports from the future": ("from __future__ import annotations\n" + RIGHT, True),
    "imports the standard library": ("import heapq, math, re, collections, itertools\n" + RIGHT, True),
    "a class and a global": ("class A:\n  n = 0\nk = A()\n" + RIGHT.replace("return", "global k; k = 1; return"), True),
    "other letters": ("# größer als null: ≥ 0\n" + RIGHT, True),
}


@pytest.mark.parametrize(("program", "passes"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_passes_here_as_there(program: str, passes: bool, task: ConfigurableTask, examples: list[Example]):
    number = next(number for number, instance in enumerate(task.instances) if instance.doc["task_id"] == 62)
    assert run_program(program, examples[number].tests).passed == passes
    assert task.process_results(task.instances[number].doc, [program])["pass_at_1"] == passes
