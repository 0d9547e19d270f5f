import numpy as np
import pytest
import torch

from cel_core.engine import PackedEngine, PlainEngine, Scores, disagreement
from cel_core.heads import INTACT, Head, HeadSet
from cel_core.layers import Trace
from cel_core.models import Model
from cel_core.prompts import Request
from tests.conftest import build_tiny

SETS = [
    INTACT,
    *(HeadSet.of([Head(layer, index)]) for layer in range(3) for index in range(4)),
    *map(HeadSet.parse, ["L0H0,L0H1", "L0H0,L1H1", "L0H0,L0H1,L2H3", "L0H0,L2H2,L2H3", "L1H0,L2H0", "L1H0,L1H1,L1H2"]),
]


def random_examples(n_examples: int, seed: int = 0, length: int = 14) -> list[list[Request]]:
    """Examples of one to four requests that share a stem with one another and a context among themselves."""
    rng = np.random.default_rng(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(map(int, rng.integers(0, 300, count)))

    stem = tokens(5)
    examples = []
    for _ in range(n_examples):
        context = (stem if rng.random() < 0.7 else tokens(2)) + tokens(int(rng.integers(1, length)))
        examples.append([Request(context, tokens(int(rng.integers(1, 5)))) for _ in range(rng.integers(1, 5))])
    return examples


def whole_table(engine, head_sets, examples, greedy=True) -> Scores:
    """All scores in order, ``(n_sets, n_requests)``; every cell must be given exactly once."""
    firsts = np.cumsum([0, *map(len, examples)])
    shape = (len(head_sets), int(firsts[-1]))
    table = Scores(*(np.full(shape, np.nan) for _ in Scores._fields))
    for block in engine.score(head_sets, examples, greedy):
        columns = np.concatenate([np.arange(firsts[e], firsts[e + 1]) for e in block.examples])
        for values, scores in zip(table, block.scores, strict=True):
            assert np.isnan(values[np.ix_(block.sets, columns)]).all()
            values[np.ix_(block.sets, columns)] = scores
    assert not any(np.isnan(values).any() for values in table)
    return table


def test_packed_scores_equal_plain_ones(tiny: Model):
    examples = random_examples(9)
    fast = whole_table(PackedEngine(tiny, pack_tokens=40), SETS, examples)
    plain = whole_table(PlainEngine(tiny, batch_size=3), SETS, examples)
    np.testing.assert_allclose(fast.logprob_nats, plain.logprob_nats, atol=2e-4)
    np.testing.assert_allclose(fast.margin_nats, plain.margin_nats, atol=2e-4)
    sure = np.abs(plain.margin_nats) > 1e-4
    np.testing.assert_array_equal(fast.n_matched[sure], plain.n_matched[sure])
    np.testing.assert_array_equal(fast.written[sure], plain.written[sure])


def test_a_window_shorter_than_the_pack_is_kept(monkeypatch):
    model = build_tiny("gemma3")
    assert disagreement(model) is None
    monkeypatch.setattr("cel_core.packing.Pack.attends", lambda self, window=None, whole=None: _without_window(self))
    assert "differ" in (disagreement(model) or "")


def _without_window(packed):
    allowed = np.zeros((len(packed.tokens),) * 2, dtype=bool)
    for node, parent in enumerate(packed.parents):
        if parent >= 0:
            allowed[node] = allowed[parent]
        allowed[node, node] = True
    return allowed


@pytest.mark.parametrize("batch_size", [4, 16])
def test_answers_do_not_depend_on_the_batch_size(tiny: Model, batch_size: int):
    examples = random_examples(8, seed=1)
    one = whole_table(PlainEngine(tiny, batch_size=1), SETS[:6], examples)
    many = whole_table(PlainEngine(tiny, batch_size=batch_size), SETS[:6], examples)
    np.testing.assert_allclose(one.logprob_nats, many.logprob_nats, atol=2e-4)
    np.testing.assert_array_equal(one.n_matched, many.n_matched)


@pytest.mark.parametrize(("pack_tokens", "batch_tokens"), [(1, 1), (64, 64), (500, 4000)])
def test_answers_do_not_depend_on_how_examples_are_packed(pack_tokens: int, batch_tokens: int):
    model = build_tiny("qwen3")
    examples = random_examples(8, seed=2)
    expected = whole_table(PlainEngine(model), SETS, examples)
    found = whole_table(PackedEngine(model, pack_tokens, batch_tokens), SETS, examples)
    np.testing.assert_allclose(found.logprob_nats, expected.logprob_nats, atol=2e-4)


def test_without_greedy_the_log_probabilities_are_the_same():
    model = build_tiny("llama")
    examples = random_examples(5, seed=3)
    with_greedy = whole_table(PackedEngine(model), SETS, examples)
    without = whole_table(PackedEngine(model), SETS, examples, greedy=False)
    np.testing.assert_array_equal(with_greedy.logprob_nats, without.logprob_nats)


def test_greedy_scores_follow_the_models_own_choice():
    model = build_tiny("llama")
    context = (3, 1, 4, 1, 5)
    own = []
    for _ in range(3):
        *_, block = PlainEngine(model).score([INTACT], [[Request((*context, *own), (0,))]])
        own.append(int(block.scores.written[0, 0]))
    right = whole_table(PackedEngine(model), [INTACT], [[Request(context, tuple(own))]])
    assert right.n_matched[0, 0] == 3
    assert right.margin_nats[0, 0] > 0
    assert right.written[0, 0] == -1
    wrong_last = whole_table(PackedEngine(model), [INTACT], [[Request(context, (own[0], own[1], (own[2] + 1) % 300))]])
    assert wrong_last.n_matched[0, 0] == 2
    assert wrong_last.margin_nats[0, 0] < 0
    assert wrong_last.written[0, 0] == own[2]


def test_the_bill_of_a_sweep_is_below_the_plain_one():
    model = build_tiny("llama")
    examples = random_examples(12, seed=4)
    fast, plain = PackedEngine(model), PlainEngine(model)
    whole_table(fast, SETS, examples)
    whole_table(plain, SETS, examples)
    assert 0 < fast.work.token_layers < plain.work.token_layers / 2
    assert fast.work.logits < plain.work.logits / 2


def test_examples_seen_again_start_from_their_kept_runs():
    model = build_tiny("llama")
    examples = random_examples(6, seed=5)
    engine = PackedEngine(model)
    whole = whole_table(engine, SETS, examples)
    before = engine.work.token_layers
    one_by_one = [whole_table(engine, [head_set], examples) for head_set in SETS]
    again = engine.work.token_layers - before
    for row, table in enumerate(one_by_one):
        np.testing.assert_allclose(table.logprob_nats[0], whole.logprob_nats[row], atol=1e-5)
    anew = 0.0
    for head_set in SETS:
        engine = PackedEngine(model)
        whole_table(engine, [head_set], examples)
        anew += engine.work.token_layers
    assert again < 0.7 * anew


def test_memory_for_kept_runs_is_bounded_whatever_the_examples():
    model = build_tiny("llama")
    engine = PackedEngine(model, pack_tokens=32, memory_bytes=200_000)
    for seed in range(4):
        whole_table(engine, SETS, random_examples(20, seed=seed))
        assert sum(trace.n_bytes for trace in engine._traces.values()) <= 200_000
    assert 1 < len(engine._traces)


def test_running_out_of_memory_halves_the_batch_and_goes_on(monkeypatch, caplog):
    model = build_tiny("llama")
    examples = random_examples(10, seed=6)
    expected = whole_table(PlainEngine(model), SETS, examples)
    real = Trace.run

    def run(self, start, hidden, keep, to_end):
        if hidden.shape[0] * hidden.shape[1] > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, start, hidden, keep, to_end)

    monkeypatch.setattr(Trace, "run", run)
    engine = PackedEngine(model)
    found = whole_table(engine, SETS, examples)
    np.testing.assert_allclose(found.logprob_nats, expected.logprob_nats, atol=2e-4)
    assert engine.batch_tokens <= 100
    assert "out of memory" in caplog.text
