"""Prompts, log-probabilities, greedy flags and correctness equal lm-evaluation-harness's, row by row."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM

from cel_core.ablation import zeroed_projection_columns
from cel_core.engine import Block, PackedEngine
from cel_core.evaluation import Evaluator
from cel_core.heads import INTACT, HeadSet
from cel_core.models import Model
from cel_core.outcomes import as_table
from cel_core.prompts import Request, encode_request
from cel_core.tasks import TASKS, Example, find_task
from cel_core.tasks.arithmetic import KINDS
from cel_core.tasks.rows import load_rows
from tests.slow.harness import harness_task

TOLERANCE_NATS = 1e-3
FILES = {  # the harness's task file and our rows of every log-likelihood task
    "hellaswag": [("hellaswag/hellaswag.yaml", "hellaswag.jsonl")],
    "boolq": [("super_glue/boolq/default.yaml", "boolq.jsonl")],
    "arithmetic": [(f"arithmetic/arithmetic_{kind}.yaml", f"arithmetic/{name}.jsonl") for kind, name in KINDS.items()],
}
MADE_UP = [  # what WikiHow leaves in HellaSwag's texts, of our own writing, since the rows at hand are ActivityNet's
    ("Home and Garden", "How to boil an egg [title] Fill a pot. [step] Use cold water.", "", "Put it on.  [substeps] Wait."),
    ("Health", " [header] How to sleep  well", "the ROOM should be dark", " [title] Close the curtains [step]"),
    ("Sports", "A man [unclear] runs.   He stops.", "THEN he", "looks [at] the [camera [twice]]."),
]


class Pair(NamedTuple):
    """One document as the harness has it, and the same row as we have it."""

    task: ConfigurableTask
    instances: list[Instance]
    example: Example

    @property
    def harness_gold(self) -> int:
        gold = self.task.doc_to_target(self.instances[0].doc)
        return gold if isinstance(gold, int) else 0


def pairs_of(task: str, folder: Path, scratch: Path, chat_template: Callable[..., str] | None = None) -> list[Pair]:
    """Every row of a task, read by both; the harness numbers its documents by file, ours come in one list."""
    examples = find_task(task).examples(load_rows(find_task(task), str(folder)))
    found = {}
    for task_file, name in FILES[task]:
        if (folder / name).is_file():
            built = harness_task(task_file, folder / name, scratch, chat_template)
            for instance in built.instances:
                found.setdefault((name, instance.doc_id), Pair(built, [], None)).instances.append(instance)
    assert len(found) == len(examples)
    # our files come in the order of their names
    return [found[place]._replace(example=example) for place, example in zip(sorted(found), examples, strict=True)]


class Watched:
    """An engine that keeps, by example, whether each continuation was the model's own choice token by token."""

    def __init__(self, engine: PackedEngine) -> None:
        self.engine = engine
        self.greedy: dict[int, list[bool]] = {}

    def score(
        self, head_sets: Sequence[HeadSet], examples: Sequence[Sequence[Request]], greedy: bool = True
    ) -> Iterator[Block]:
        for block in self.engine.score(head_sets, examples, greedy=True):
            matched = iter(block.scores.n_matched[0])
            for index in block.examples:
                self.greedy[index] = [next(matched) == len(request.continuation) for request in examples[index]]
            yield block


@pytest.mark.parametrize("task", FILES)
def test_prompts_choices_and_labels_of_all_shared_rows_are_the_harness_s(task: str, shared: Path, scratch: Path):
    for pair in pairs_of(task, shared / "data", scratch):
        expected = [instance.args for instance in pair.instances]
        assert [(pair.example.context, continuation) for continuation in pair.example.continuations] == expected
        assert pair.example.gold == pair.harness_gold


def test_prompts_of_rows_with_brackets_and_double_blanks_are_the_harness_s(tmp_path: Path, scratch: Path):
    with (tmp_path / "hellaswag.jsonl").open("w") as file:
        for label, (activity, ctx_a, ctx_b, ending) in enumerate(MADE_UP):
            endings = [ending, "a  b   c", "[x] y [z]", ending[::-1]]
            row = {"activity_label": activity, "ctx_a": ctx_a, "ctx_b": ctx_b, "endings": endings, "label": str(label)}
            file.write(json.dumps(row) + "\n")
    for pair in pairs_of("hellaswag", tmp_path, scratch):
        expected = [instance.args for instance in pair.instances]
        assert [(pair.example.context, continuation) for continuation in pair.example.continuations] == expected


@pytest.mark.parametrize("task", FILES)
def test_tokens_read_and_scored_are_the_harness_s(task: str, rows: Path, scratch: Path, smollm2: Model, lm: HFLM):
    for pair in pairs_of(task, rows, scratch):
        for instance in pair.instances:
            for context, continuation in (instance.args, (f"{instance.args[0]}  ", instance.args[1].strip())):
                request = encode_request(smollm2.tokenizer, context, continuation, smollm2.max_length)
                read, scored = lm._encode_pair(context, continuation)
                assert (list(request.context), list(request.continuation)) == (read, scored)


@pytest.mark.parametrize("task", FILES)
def test_with_a_chat_template_the_requests_are_the_harness_s(
    task: str, rows: Path, scratch: Path, smollm2: Model, engine: PackedEngine, lm: HFLM
):
    evaluator = Evaluator(smollm2, TASKS[task], chat_template=True, engine=engine)
    for pair in pairs_of(task, rows, scratch, lm.apply_chat_template):
        assert evaluator.rendered(pair.example) == pair.instances[0].args[0]
        found = [(list(read), list(scored)) for read, scored in evaluator.requests(pair.example)]
        assert found == [lm._encode_pair(*instance.args) for instance in pair.instances]


@pytest.mark.parametrize("task", FILES)
def test_scores_and_correctness_are_the_harness_s(
    task: str, rows: Path, scratch: Path, smollm2: Model, engine: PackedEngine, lm: HFLM
):
    pairs = pairs_of(task, rows, scratch)
    assert len(pairs) == 20
    watched = Watched(engine)
    [outcomes] = _in_order(Evaluator(smollm2, TASKS[task], engine=watched), [INTACT], [pair.example for pair in pairs])
    answers = iter(lm.loglikelihood([instance for pair in pairs for instance in pair.instances], disable_tqdm=True))
    for index, (pair, outcome) in enumerate(zip(pairs, outcomes, strict=True)):
        expected = [next(answers) for _ in pair.instances]
        np.testing.assert_allclose(outcome["logprobs_nats"], [nats for nats, _ in expected], atol=TOLERANCE_NATS, rtol=0)
        assert watched.greedy[index] == [greedy for _, greedy in expected]
        metrics = pair.task.process_results(pair.instances[0].doc, expected)
        assert outcome["correct"] == metrics["acc_norm" if task == "hellaswag" else "acc"]
        if task == "hellaswag":
            assert (np.argmax(outcome["logprobs_nats"]) == pair.example.gold) == metrics["acc"]


def test_scores_without_heads_are_the_harness_s_on_weights_without_them(
    rows: Path, scratch: Path, smollm2: Model, engine: PackedEngine, lm: HFLM
):
    pairs = pairs_of("arithmetic", rows, scratch)[::2]
    evaluator = Evaluator(smollm2, TASKS["arithmetic"], engine=engine)
    head_sets = [HeadSet.parse("L4H2"), HeadSet.parse("L4H2,L11H0,L29H8")]
    tables = _in_order(evaluator, head_sets, [pair.example for pair in pairs])
    seen = []
    for head_set, outcomes in zip(head_sets, tables, strict=True):
        with zeroed_projection_columns(smollm2, head_set):
            expected = lm.loglikelihood([pair.instances[0] for pair in pairs], disable_tqdm=True)
        logprobs = [outcome["logprobs_nats"][0] for outcome in outcomes]
        np.testing.assert_allclose(logprobs, [logprob for logprob, _ in expected], atol=TOLERANCE_NATS, rtol=0)
        assert [outcome["correct"] for outcome in outcomes] == [greedy for _, greedy in expected]
        seen.append(logprobs)
    assert np.abs(np.subtract(*seen)).max() > 10 * TOLERANCE_NATS  # the other heads do matter


def _in_order(evaluator: Evaluator, head_sets: list[HeadSet], examples: list[Example]) -> list[list[dict]]:
    """Outcomes by head set, then in the order of the examples."""
    found = {
        (outcome["head_set"], outcome["example"]): outcome
        for block in evaluator.outcomes(head_sets, examples)
        for outcome in as_table([block]).to_pylist()
    }
    return [[found[str(head_set), example.key] for example in examples] for head_set in head_sets]
