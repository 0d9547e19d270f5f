"""The estimate is the derivative it says it is, of the margin that scoring sees."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from cel_core.attribution import attribute
from cel_core.engine import PackedEngine, PlainEngine
from cel_core.errors import ConfigError
from cel_core.evaluation import Evaluator
from cel_core.heads import INTACT, Head, HeadSet, all_heads
from cel_core.models import Model
from cel_core.outcomes import as_table
from cel_core.prompts import Request
from cel_core.tasks import find_task
from tests.conftest import build_tiny

CONTEXT = (5, 9, 120, 44, 7, 31)
CHOICES = [Request(CONTEXT, (12, 80)), Request(CONTEXT, (13,)), Request(CONTEXT[:-1], (31, 2, 90))]
LENGTHS = [7, 3, 11]


def merits(model: Model, requests: list[Request], scale: dict[Head, float]) -> np.ndarray:
    """Each request's log-probability over its length, by a plain pass in float64 with head outputs scaled by hand."""
    found = []
    with ExitStack() as hooks:
        for layer, projection in enumerate(model.projections):

            def scaled(_, inputs, layer=layer):
                z = inputs[0].clone()
                for head, factor in scale.items():
                    if head.layer == layer:
                        d = model.geometry.d_head
                        z[..., head.index * d : (head.index + 1) * d] *= factor
                return (z, *inputs[1:])

            hooks.callback(projection.register_forward_pre_hook(scaled).remove)
        for request in requests:
            tokens = torch.tensor([request.context + request.continuation])
            logprobs = model.causal_lm(input_ids=tokens).logits[0].double().log_softmax(-1)
            at = range(len(request.context) - 1, tokens.shape[1] - 1)
            found.append(sum(logprobs[i, t].item() for i, t in zip(at, request.continuation, strict=True)))
    return np.array(found) / LENGTHS[: len(requests)]


def margin(values: np.ndarray, gold: int) -> float:
    return values[gold] - max(np.delete(values, gold))


def test_the_change_is_the_slope_of_the_margin_in_each_heads_output(tiny: Model):
    tiny.causal_lm.double()
    gold = 1
    found = attribute(tiny, CHOICES, LENGTHS, gold)
    assert found.margin_nats == pytest.approx(margin(merits(tiny, CHOICES, {}), gold), abs=1e-5)
    step = 1e-2  # normalisations are float32 in every family's code, so a smaller one drowns in rounding
    for head in (Head(0, 1), Head(1, 3), Head(2, 0)):
        up, down = (margin(merits(tiny, CHOICES, {head: 1 + sign * step}), gold) for sign in (1, -1))
        slope = (up - down) / (2 * step)
        assert found.change_nats[head.layer, head.index] == pytest.approx(-slope, rel=2e-3, abs=1e-4)


def test_a_single_request_is_judged_by_its_smallest_gap(tiny: Model):
    request = CHOICES[0]
    [block] = PackedEngine(tiny).score([INTACT], [[request]])
    assert attribute(tiny, [request], [1], 0).margin_nats == pytest.approx(block.scores.margin_nats[0, 0], abs=1e-4)


def test_nothing_of_it_stays_behind():
    model = build_tiny("llama")
    before = model.causal_lm(input_ids=torch.tensor([CONTEXT])).logits
    attribute(model, CHOICES, LENGTHS, 0)
    assert torch.equal(model.causal_lm(input_ids=torch.tensor([CONTEXT])).logits, before)
    assert all(parameter.grad is None for parameter in model.causal_lm.parameters())


def test_all_heads_are_ranked_and_the_one_that_gains_most_in_the_last_layer_leads_it():
    model = build_tiny("llama")
    evaluator = Evaluator(model, find_task("carry"))
    examples = find_task("carry").examples(find_task("carry").generated_rows(0))[:40]
    order = evaluator.promising(examples)
    assert sorted(order) == all_heads(3, 4)
    assert evaluator.engine.work.token_layers > 0
    sets = [INTACT, *(HeadSet((head,)) for head in order)]
    table = as_table(list(evaluator.outcomes(sets, examples))).to_pandas().groupby("head_set")
    gained, moved = table["correct"].sum(), table["margin_nats"].mean()
    last = [f"L2H{head.index}" for head in order if head.layer == 2]
    assert gained[last].nunique() == 1  # a random model answers nothing right, so the margins decide
    assert last[0] == max(last, key=lambda name: moved[name])


def test_what_it_cannot_do_is_said():
    model = build_tiny("llama")
    with pytest.raises(ConfigError, match="mbpp' has no margin"):
        Evaluator(model, find_task("mbpp"), allow_code_execution=True).promising([])
    with pytest.raises(ConfigError, match="without the packing that attribution needs"):
        Evaluator(model, find_task("carry"), engine=PlainEngine(model)).promising([])
