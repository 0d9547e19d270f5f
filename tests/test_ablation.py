import pytest
import torch

from cel_core.ablation import ablate, verify_heads, zeroed_projection_columns
from cel_core.errors import HeadError, ModelError
from cel_core.heads import INTACT, HeadSet
from cel_core.models import Model, in_features
from tests.conftest import build_tiny

TOKENS = torch.tensor([[5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43]])


def logits(model: Model, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    with torch.inference_mode():
        return model.causal_lm(input_ids=tokens, use_cache=False).logits


def test_a_family_passes_its_experiment(tiny: Model):
    verify_heads(tiny)


@pytest.mark.parametrize("heads", ["L0H0", "L1H3", "L2H2", "L0H1,L1H2,L2H3"])
def test_ablation_equals_zeroed_projection_columns(tiny: Model, heads: str):
    removed = HeadSet.parse(heads)
    with ablate(tiny, removed):
        ablated = logits(tiny)
    with zeroed_projection_columns(tiny, removed):
        expected = logits(tiny)
    torch.testing.assert_close(ablated, expected, atol=1e-5, rtol=0)
    assert not torch.equal(ablated, logits(tiny))


def test_logits_are_bit_identical_after_the_context_and_after_an_exception(tiny: Model):
    before = logits(tiny)
    with ablate(tiny, HeadSet.parse("L1H1")):
        logits(tiny)
    assert torch.equal(logits(tiny), before)
    with pytest.raises(RuntimeError, match="midway"), ablate(tiny, HeadSet.parse("L0H0,L2H3")):
        raise RuntimeError("midway")
    assert torch.equal(logits(tiny), before)


def test_the_empty_set_changes_no_bit(tiny: Model):
    before = logits(tiny)
    with ablate(tiny, INTACT):
        assert torch.equal(logits(tiny), before)


def test_rows_of_one_batch_can_lose_different_heads(tiny: Model):
    sets = [INTACT, HeadSet.parse("L0H2"), HeadSet.parse("L1H0,L2H1")]
    with ablate(tiny, sets):
        together = logits(tiny, TOKENS.expand(3, -1))
    for row, removed in enumerate(sets):
        with ablate(tiny, removed):
            torch.testing.assert_close(together[row : row + 1], logits(tiny), atol=1e-5, rtol=0)


def test_wide_heads_are_cut_by_the_projection_not_by_hidden_size():
    model = build_tiny("llama, wide heads")
    assert model.geometry.d_head == 32
    assert in_features(model.projections[0]) == 128
    seen = []
    handle = model.projections[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with ablate(model, HeadSet.parse("L0H3")):
            handle.remove()  # the observer must run after the ablation
            handle = model.projections[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
            logits(model)
    finally:
        handle.remove()
    zero = (seen[-1] == 0).all(dim=(0, 1)).nonzero().flatten().tolist()
    assert zero == list(range(96, 128))


def test_grouped_query_heads_are_the_query_heads():
    model = build_tiny("llama")
    assert (model.geometry.n_heads, model.geometry.n_kv_heads) == (4, 2)
    with ablate(model, HeadSet.parse("L0H0")):
        zero = []
        handle = model.projections[0].register_forward_pre_hook(lambda _, inputs: zero.append(inputs[0]))
        logits(model)
        handle.remove()
    z = zero[0].unflatten(-1, (4, 16))
    assert (z[..., 0, :] == 0).all()
    assert (z[..., 1, :] != 0).any()  # head 1 shares head 0's key and value, and stays


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_back_ends_agree(attention: str):
    model = build_tiny("llama")
    with ablate(model, HeadSet.parse("L1H2")):
        expected = logits(model)
        model.causal_lm.set_attn_implementation(attention)
        torch.testing.assert_close(logits(model), expected, atol=1e-4, rtol=1e-4)


def test_a_head_outside_the_model_is_named():
    with pytest.raises(HeadError, match="L3H0 is not in this model: layers go from 0 to 2, heads from 0 to 3"):
        with ablate(build_tiny("gpt2"), HeadSet.parse("L3H0")):
            pass


def test_a_wrong_site_is_found_out():
    model = build_tiny("llama")
    wrong = Model(**{**vars(model), "projections": tuple(block.mlp.down_proj for block in model.blocks)})
    with pytest.raises((ModelError, RuntimeError)):
        verify_heads(wrong)


def test_a_model_that_reads_ahead_is_refused():
    model = build_tiny("llama")
    for block in model.blocks:
        block.self_attn.is_causal = False
    model.causal_lm.config.is_causal = False
    with pytest.raises(ModelError, match="attends to later tokens"):
        verify_heads(model)
