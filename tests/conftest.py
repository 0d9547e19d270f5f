"""Tiny random models of every supported family, built from their configuration classes, and a tokenizer for them."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cel_core.models import Model, locate

torch.set_num_threads(1)  # tiny models lose more than they gain from a second thread

_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 256,
}
_GATED = _SMALL | {"intermediate_size": 96, "num_key_value_heads": 2}
TINY = {
    "llama": ("Llama", _GATED),
    "llama, wide heads": ("Llama", _GATED | {"head_dim": 32}),
    "mistral": ("Mistral", _GATED | {"sliding_window": 8}),
    "qwen2": ("Qwen2", _GATED),
    "qwen3": ("Qwen3", _GATED | {"head_dim": 32}),
    "smollm3": ("SmolLM3", _GATED | {"no_rope_layers": [1, 0, 1], "pad_token_id": 0}),
    "gemma3": (
        "Gemma3",
        _GATED
        | {
            "head_dim": 32,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "phi3": ("Phi3", _GATED | {"pad_token_id": 0}),
    "olmo2": ("Olmo2", _GATED),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 300, "n_positions": 256}),
    "gpt_neox": ("GPTNeoX", _SMALL | {"intermediate_size": 96}),
}


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A tokenizer with one token a byte, so that any text can be put to a tiny model."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)} | {
        "<eos>": len(letters),
        "<bos>": len(letters) + 1,
    }
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", bos_token="<bos>", pad_token="<eos>"
    )


def build_tiny(family: str, seed: int = 0, **changes: object) -> Model:
    """A random model of a family with three layers of four heads."""
    name, settings = TINY[family]
    prefix = "Gemma3Text" if name == "Gemma3" else name
    config = getattr(transformers, f"{prefix}Config")(**settings | changes)
    torch.manual_seed(seed)
    model_class = getattr(transformers, f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    causal_lm = model_class(config).eval().requires_grad_(False)
    for parameter in causal_lm.parameters():
        if parameter.ndim == 2:
            parameter.mul_(4)  # larger than a fresh model's weights, so that removing a head is felt
    return locate(f"tiny {family}", causal_lm, byte_tokenizer())


@pytest.fixture(params=TINY)
def tiny(request: pytest.FixtureRequest) -> Model:
    """Each family in turn."""
    return build_tiny(request.param)
