"""Sharing computation, packing, batching and padding change no outcome of a real model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import transformers
from lm_eval.models.huggingface import HFLM
from tokenizers.processors import TemplateProcessing

from cel_core.engine import PackedEngine, PlainEngine
from cel_core.evaluation import Evaluator
from cel_core.generation import Prompt, write
from cel_core.heads import INTACT, Head, HeadSet
from cel_core.models import Model
from cel_core.outcomes import as_table
from cel_core.prompts import chat_prompt, encode
from cel_core.tasks import TASKS, Example, find_task
from cel_core.tasks.rows import load_rows

SETS = [INTACT, *map(HeadSet.parse, ["L0H0", "L5H3", "L29H8", "L5H3,L20H1", "L5H3,L20H1,L29H8"])]  # nested ones among them
N_ROWS = {"hellaswag": 2, "boolq": 3, "arithmetic": 18}


def some(task: str, rows: Path) -> list[Example]:
    """A task's shortest examples."""
    examples = find_task(task).examples(load_rows(find_task(task), str(rows)))
    return sorted(examples, key=lambda example: len(example.context))[: N_ROWS[task]]


def table(
    engine: PackedEngine | PlainEngine, task: str, examples: list[Example], head_sets: Sequence[HeadSet] = SETS
) -> pd.DataFrame:
    """All outcomes, by head set and example; every cell must be there once."""
    blocks = list(Evaluator(engine.model, TASKS[task], engine=engine).outcomes(head_sets, examples))
    found = as_table(blocks).to_pandas().set_index(["head_set", "example"], verify_integrity=True).sort_index()
    assert len(found) == len(head_sets) * len(examples)
    return found


def assert_same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    for column in ("correct", "answer"):
        pd.testing.assert_series_equal(one[column], other[column])
    np.testing.assert_allclose(one["margin_nats"], other["margin_nats"], atol=1e-3, rtol=0)
    np.testing.assert_allclose(np.stack(one["logprobs_nats"]), np.stack(other["logprobs_nats"]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("task", N_ROWS)
def test_a_sweep_that_shares_computation_gives_the_outcomes_of_plain_passes(task: str, rows: Path, smollm2: Model):
    examples = some(task, rows)[:8]
    shared, plain = PackedEngine(smollm2), PlainEngine(smollm2)
    fast = table(shared, task, examples)
    assert_same(fast, table(plain, task, examples))
    margins = fast["margin_nats"].unstack("head_set")
    assert (margins.drop(columns="").sub(margins[""], axis=0).abs().max() > 1e-3).all()  # every set is felt
    assert shared.work.token_layers < 0.8 * plain.work.token_layers


def test_outcomes_do_not_depend_on_the_batch_size(rows: Path, smollm2: Model):
    examples = some("arithmetic", rows)
    one, four, sixteen = (table(PlainEngine(smollm2, size), "arithmetic", examples, SETS[4:5]) for size in (1, 4, 16))
    assert_same(one, four)
    assert_same(one, sixteen)


@pytest.mark.parametrize(("pack_tokens", "batch_tokens"), [(1, 1), (128, 512), (2048, 8192)])
def test_outcomes_do_not_depend_on_how_examples_are_packed(
    pack_tokens: int, batch_tokens: int, rows: Path, smollm2: Model, engine: PackedEngine
):
    examples = some("arithmetic", rows)[:5]
    expected = table(engine, "arithmetic", examples)
    assert_same(table(PackedEngine(smollm2, pack_tokens, batch_tokens), "arithmetic", examples), expected)


def test_written_text_does_not_depend_on_the_batch_size(rows: Path, smollm2: Model):
    prompts = [Prompt(encode(smollm2.tokenizer, example.context), "\n") for example in some("arithmetic", rows)[::4]]
    head_sets = [INTACT, HeadSet.of(Head(1, index) for index in range(9))]
    one, four, sixteen = (write(smollm2, head_sets, prompts, 4, batch_size) for batch_size in (1, 4, 16))
    assert one == four == sixteen
    assert len({len(prompt.tokens) for prompt in prompts}) > 2  # padding is needed
    assert one[0] != one[1]


def test_a_rendered_chat_prompt_has_one_bos_at_its_start(smollm2: Model, lm: HFLM, model_folder: Path):
    rendered = chat_prompt(smollm2.tokenizer, "What is 2 plus 2?")
    assert rendered.endswith("<|im_start|>user\nWhat is 2 plus 2?<|im_end|>\n<|im_start|>assistant\n")
    tokens = encode(smollm2.tokenizer, rendered)
    assert tokens == lm.tok_encode(rendered)
    bos = smollm2.tokenizer.bos_token_id
    assert tokens[0] == bos != tokens[1]

    adding = transformers.AutoTokenizer.from_pretrained(model_folder)  # as Llama 3's does: BOS before every text
    adding.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{adding.bos_token} $A", special_tokens=[(adding.bos_token, bos)]
    )
    assert encode(adding, "hello")[:2] == [bos, adding.encode("hello", add_special_tokens=False)[0]]
    assert encode(adding, rendered) == tokens
