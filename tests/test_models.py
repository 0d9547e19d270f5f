"""Loading models and locating their heads: what works, and what is refused with one line that names value and remedy."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import gguf
import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from cel_core.ablation import ablate, verify_heads, zeroed_projection_columns
from cel_core.engine import PackedEngine, PlainEngine, build_engine, disagreement
from cel_core.errors import ModelError
from cel_core.heads import INTACT, HeadSet
from cel_core.models import (
    Geometry,
    Model,
    choose_dtype,
    default_device,
    geometry_of,
    in_features,
    load_model,
    locate,
    read_config,
)
from cel_core.prompts import Request
from tests.conftest import TINY, build_tiny, byte_tokenizer

_SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 300}
_GATED = _SMALL | {"num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256}
_GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 300, "n_positions": 256, "bos_token_id": 0, "eos_token_id": 1}
UNKNOWN = {  # families without a row in FAMILIES: settings, and where their output projection lies in a layer
    "StableLm": (_GATED, "self_attn.o_proj"),
    "Starcoder2": (_GATED | {"bos_token_id": 0, "eos_token_id": 1}, "self_attn.o_proj"),
    "Mixtral": (_GATED | {"num_local_experts": 4}, "self_attn.o_proj"),
    "Qwen3Moe": (
        _GATED | {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        "self_attn.o_proj",
    ),
    "Gemma2": (
        _GATED | {"head_dim": 32, "sliding_window": 8, "final_logit_softcapping": 5.0},
        "self_attn.o_proj",
    ),
    "Granite": (_GATED | {"logits_scaling": 1.0}, "self_attn.o_proj"),
    "GPTJ": (_GPT | {"rotary_dim": 8}, "attn.out_proj"),
    "OPT": (
        _SMALL | {"ffn_dim": 96, "word_embed_proj_dim": 64, "max_position_embeddings": 256, "pad_token_id": 1},
        "self_attn.out_proj",
    ),
    "Falcon": (_SMALL, "self_attention.dense"),
}


def build(name: str, **settings: object) -> transformers.PreTrainedModel:
    """A small random model of any family, its weights large enough that removing a head is felt."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    causal_lm = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in causal_lm.parameters():
        if parameter.ndim == 2:
            parameter.mul_(4)
    return causal_lm


def save(model: Model, folder: Path) -> Path:
    model.causal_lm.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama as a Hugging Face folder."""
    return save(build_tiny("llama"), tmp_path / "llama")


def refusal(action: Callable[[], object]) -> str:
    """The message of a `ModelError`, which must be one line."""
    with pytest.raises(ModelError) as caught:
        action()
    message = str(caught.value)
    assert message and "\n" not in message
    assert len(message) < 400
    return message


# What is no model


@pytest.mark.parametrize("spec", ["./none", "/no/such/folder", "~/no-such-model", "a/b/c", "..\\models\\x"])
def test_a_missing_folder_is_named(spec: str):
    assert refusal(lambda: load_model(spec)) == (
        f"model '{spec}' is not a folder: give a Hugging Face folder, a .gguf file, a hub id or 'demo'"
    )


@pytest.mark.parametrize("spec", ["nobody/no-such-model", "no-such-model"])
def test_a_name_that_the_hub_does_not_give_is_named(spec: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = refusal(lambda: load_model(spec))
    assert message.startswith(f"model '{spec}' cannot be read (")
    assert message.endswith("): check its name or path, or give 'demo'")


def test_a_hub_error_of_many_lines_becomes_one(monkeypatch: pytest.MonkeyPatch):
    def fail(_: str) -> None:
        raise OSError("no such model.\nIf this is a private repository, log in.\n" + "x" * 500)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    assert refusal(lambda: read_config("some/model")) == (
        "model 'some/model' cannot be read (no such model): check its name or path, or give 'demo'"
    )


def test_a_folder_without_config_is_named(tmp_path: Path):
    assert refusal(lambda: load_model(str(tmp_path))) == (
        f"model folder '{tmp_path}' has no config.json: give a folder written by save_pretrained"
    )


def test_a_config_that_is_no_json_is_refused(folder: Path):
    (folder / "config.json").write_text("{")
    assert f"model '{folder}' cannot be read" in refusal(lambda: load_model(str(folder)))


# What is a model, but no decoder with attention: refused before a weight is read (there are none in these folders)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("T5", "is an encoder-decoder (t5): give a decoder-only language model"),
        ("Bart", "is an encoder-decoder (bart): give a decoder-only language model"),
        ("ViT", "is no causal language model (its type is 'vit'): give a decoder-only text model"),
        ("Wav2Vec2", "is no causal language model (its type is 'wav2vec2'): give a decoder-only text model"),
        ("Mamba", "has no fixed number of attention heads per layer (its type is 'mamba'): give a decoder-only transformer"),
    ],
)
def test_what_is_no_decoder_with_attention_is_refused(name: str, reason: str, tmp_path: Path):
    getattr(transformers, f"{name}Config")().save_pretrained(tmp_path)
    assert refusal(lambda: load_model(str(tmp_path))) == f"model '{tmp_path}' {reason}"


@pytest.mark.parametrize("name", ["Bert", "Roberta", "Electra"])
def test_an_encoder_is_refused(name: str, tmp_path: Path):
    settings = _SMALL | {"intermediate_size": 96, "embedding_size": 64} if name == "Electra" else _SMALL
    causal_lm = build(name, **settings)
    causal_lm.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    message = refusal(lambda: verify_heads(load_model(str(tmp_path))))
    assert message.startswith(f"model '{tmp_path}' ('{name.lower()}'): its attention output projections cannot be located")


def test_layers_of_which_some_have_no_attention_are_refused():
    causal_lm = build("Lfm2", **_GATED, layer_types=["full_attention", "conv", "full_attention"])
    assert refusal(lambda: locate("mixed", causal_lm, byte_tokenizer())).startswith(
        "model 'mixed' ('lfm2'): its attention output projections cannot be located; supported are gemma3_text, gpt2, "
    )


# Damaged files


@pytest.mark.parametrize("damage", ["cut short", "no safetensors", "tensor missing", "tensor of another shape", "file missing"])
def test_damaged_weights_are_refused(damage: str, folder: Path):
    file, name = folder / "model.safetensors", "model.layers.1.self_attn.o_proj.weight"
    weights = load_file(file)
    match damage:
        case "cut short":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        case "no safetensors":
            file.write_bytes(b"<html>404</html>")
        case "tensor missing":  # transformers alone would go on with random numbers in its place
            save_file({key: value for key, value in weights.items() if key != name}, file, metadata={"format": "pt"})
        case "tensor of another shape":
            save_file(weights | {name: torch.zeros(64, 32)}, file, metadata={"format": "pt"})
        case "file missing":
            file.unlink()
    message = refusal(lambda: load_model(str(folder), "cpu"))
    assert message.startswith(f"model '{folder}' cannot be loaded on cpu as float32 (")
    assert message.endswith("): check its files, or choose another device or dtype")
    if damage == "tensor missing":
        assert f"(no weights for {name})" in message


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path):
    build_tiny("llama").causal_lm.save_pretrained(tmp_path)
    assert refusal(lambda: load_model(str(tmp_path))).startswith(f"model '{tmp_path}' cannot be loaded on cpu as float32 (")


# Devices and dtypes


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "", "CPU!"])
def test_an_unknown_device_is_named(device: str, folder: Path):
    assert refusal(lambda: load_model(str(folder), device=device)) == (
        f"device '{device}' is not available here: give 'auto', 'cpu', 'cuda' or 'mps'"
    )


@pytest.mark.parametrize("dtype", ["float31", "int8"])
def test_an_unusable_dtype_is_named(dtype: str, folder: Path):
    assert f"cannot be loaded on cpu as {dtype} (" in refusal(lambda: load_model(str(folder), "cpu", dtype))


def test_the_dtype_follows_the_device(monkeypatch: pytest.MonkeyPatch):
    cpu, cuda, mps = map(torch.device, ("cpu", "cuda", "mps"))
    assert choose_dtype(cpu) == "float32"
    assert choose_dtype(mps) == "bfloat16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert choose_dtype(cuda) == "bfloat16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert choose_dtype(cuda) == "float16"  # emulated bfloat16 does not count
    assert choose_dtype(cuda, "float32") == choose_dtype(mps, "float32") == "float32"
    assert choose_dtype(cpu, "bfloat16") == "bfloat16"


def test_the_fastest_device_is_the_default(monkeypatch: pytest.MonkeyPatch):
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert default_device() == torch.device(expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_model_is_loaded_in_the_dtype_asked_for(dtype: str, folder: Path):
    model = load_model(str(folder), "cpu", dtype)
    assert model.dtype == dtype
    assert {str(parameter.dtype) for parameter in model.causal_lm.parameters()} == {f"torch.{dtype}"}
    verify_heads(model)


# What a loaded model says of itself


def test_a_saved_model_is_the_same_model_when_loaded_again(tiny: Model, tmp_path: Path):
    loaded = load_model(str(save(tiny, tmp_path / "saved")), "cpu")
    assert load_model(str(save(loaded, tmp_path / "again")), "cpu").fingerprint == loaded.fingerprint
    if tiny.family != "qwen2":  # a Qwen2 folder is always read with that family's own tokenizer, not with the tests'
        assert loaded.fingerprint == tiny.fingerprint
    assert loaded.geometry == tiny.geometry == geometry_of(tiny.causal_lm.config)
    assert (loaded.family, loaded.spec, loaded.max_length, loaded.n_vocabulary) == (
        tiny.family,
        str(tmp_path / "saved"),
        256,
        300,
    )
    tokens = torch.tensor([[5, 7, 11, 13, 17]])
    assert torch.equal(loaded.causal_lm(tokens).logits, tiny.causal_lm(tokens).logits)
    assert not any(parameter.requires_grad for parameter in loaded.causal_lm.parameters())


@pytest.mark.parametrize(
    ("family", "geometry"),
    [
        ("llama", Geometry(3, 4, 2, 16)),
        ("llama, wide heads", Geometry(3, 4, 2, 32)),
        ("gpt2", Geometry(3, 4, 4, 16)),
        ("gemma3", Geometry(3, 4, 2, 32)),
        ("gpt_neox", Geometry(3, 4, 4, 16)),
    ],
)
def test_heads_are_counted_as_query_heads_of_their_own_width(family: str, geometry: Geometry):
    model = build_tiny(family)
    assert model.geometry == geometry
    assert model.geometry.n_total_heads == 12
    assert in_features(model.projections[0]) == 4 * geometry.d_head


def test_heads_that_do_not_fill_the_projection_are_refused():
    model = build_tiny("llama")
    model.causal_lm.config.num_attention_heads = 5
    assert refusal(lambda: locate("odd", model.causal_lm, model.tokenizer)) == (
        "model 'odd': 3 layers whose output projection reads 64 values do not fit the 3 layers of 5 heads it declares; this "
        "architecture is not supported"
    )


def _one_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"][3, 5] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _one_setting(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500.0
    (folder / "config.json").write_text(json.dumps(config))


def _end_token(folder: Path) -> None:
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [2, 99]}))


def _tokenizer(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"!": 0', '"!": 1').replace('"\\"": 1', '"\\"": 0'))


@pytest.mark.parametrize("change", [_one_weight, _one_setting, _end_token, _tokenizer])
def test_the_fingerprint_changes_with_what_can_change_an_answer(change: Callable[[Path], None], folder: Path):
    before = load_model(str(folder)).fingerprint
    change(folder)
    assert load_model(str(folder)).fingerprint != before


def test_the_fingerprint_does_not_depend_on_where_the_model_lies(folder: Path):
    before = load_model(str(folder)).fingerprint
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_version": "5.0.0", "_name_or_path": "elsewhere"}))
    assert load_model(str(folder.rename(folder.with_name("moved")))).fingerprint == before


def test_two_seeds_of_one_family_have_two_fingerprints():
    assert build_tiny("gpt2", seed=0).fingerprint != build_tiny("gpt2", seed=1).fingerprint
    assert build_tiny("gpt2", seed=0).fingerprint == build_tiny("gpt2", seed=0).fingerprint


# GGUF


def write_gguf(model: Model, path: Path) -> Path:
    """A tiny Llama as llama.cpp's converter writes it: query and key rows interleaved, the tokenizer inside."""
    config, n_heads = model.causal_lm.config, model.geometry.n_heads
    letters = sorted(model.tokenizer.get_vocab(), key=model.tokenizer.get_vocab().__getitem__)
    unused = ["ab", *(f"<unused{number}>" for number in range(model.n_vocabulary - len(letters) - 1))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(model.geometry.n_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(model.geometry.d_head)
    writer.add_vocab_size(model.n_vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(letters + unused)
    writer.add_token_types([1] * 256 + [3] * 2 + [1] * len(unused))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(model.tokenizer.eos_token_id)
    writer.add_bos_token_id(model.tokenizer.bos_token_id)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.causal_lm.state_dict().items():
        values = tensor.numpy()
        for part, heads in (("q_proj", n_heads), ("k_proj", model.geometry.n_kv_heads)):
            if part in name:
                values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that converted models go to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cel" / "gguf"


def test_a_gguf_file_is_the_model_it_was_made_from(tmp_path: Path, cache: Path):
    original = build_tiny("llama")
    model = load_model(str(write_gguf(original, tmp_path / "tiny.gguf")), "cpu")
    tokens = torch.tensor([[5, 7, 11, 13, 17]])
    torch.testing.assert_close(model.causal_lm(tokens).logits, original.causal_lm(tokens).logits, atol=1e-5, rtol=0)
    assert model.geometry == original.geometry
    assert model.spec == str(tmp_path / "tiny.gguf")
    assert model.tokenizer.encode("12 + 3") == original.tokenizer.encode("12 + 3")
    verify_heads(model)


def test_a_gguf_file_is_converted_once_whatever_its_name(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    file = write_gguf(build_tiny("llama"), tmp_path / "tiny.gguf")
    first = load_model(str(file))
    [folder] = cache.iterdir()
    assert (folder / "model.safetensors").is_file()
    real = transformers.AutoModelForCausalLM.from_pretrained

    def refuse(source: object, *args: object, gguf_file: str | None = None, **settings: object) -> object:
        assert gguf_file is None, "converted again"
        return real(source, *args, **settings)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    again = load_model(str(file.rename(tmp_path / "other name.GGUF")))
    assert again.fingerprint == first.fingerprint
    assert list(cache.iterdir()) == [folder]


def test_another_gguf_file_is_another_model(tmp_path: Path, cache: Path):
    one = load_model(str(write_gguf(build_tiny("llama", seed=0), tmp_path / "tiny.gguf")))
    other = load_model(str(write_gguf(build_tiny("llama", seed=1), tmp_path / "tiny.gguf")))  # the same name
    assert one.fingerprint != other.fingerprint
    assert len(list(cache.iterdir())) == 2


def test_a_conversion_that_another_process_finished_first_is_used(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    file = write_gguf(build_tiny("llama"), tmp_path / "tiny.gguf")
    load_model(str(file))
    [folder] = cache.iterdir()
    real = Path.is_file
    answers = iter([False])  # the first look into the cache finds nothing yet
    monkeypatch.setattr(Path, "is_file", lambda path: next(answers, True) if path == folder / "config.json" else real(path))
    assert read_config(str(file))[1] == str(folder)
    assert list(cache.iterdir()) == [folder]


def test_a_missing_gguf_file_is_named(tmp_path: Path):
    path = tmp_path / "none.gguf"
    assert refusal(lambda: load_model(str(path))) == f"model file '{path}' does not exist: check the path"


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path, cache: Path):
    path = tmp_path / "page.gguf"
    path.write_text("<html>404</html>")
    assert refusal(lambda: load_model(str(path))) == (
        f"model file '{path}' is not a GGUF file: give one that starts with the bytes GGUF"
    )


def test_a_damaged_gguf_file_is_refused_and_leaves_nothing_behind(tmp_path: Path, cache: Path):
    path = write_gguf(build_tiny("llama"), tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = refusal(lambda: load_model(str(path)))
    assert message.startswith(f"model file '{path}' cannot be converted (")
    assert not cache.exists() or not list(cache.iterdir())


# Families without a row of their own


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_family_is_located_by_its_structure_and_passes_its_experiments(name: str):
    settings, projection = UNKNOWN[name]
    causal_lm = build(name, **settings)
    model = locate(f"tiny {name}", causal_lm, byte_tokenizer())
    assert all(module is block.get_submodule(projection) for module, block in zip(model.projections, model.blocks, strict=True))
    assert len(model.blocks) == 3
    verify_heads(model)
    assert disagreement(model) is None
    assert isinstance(build_engine(model), PackedEngine)


@pytest.mark.parametrize("name", UNKNOWN)
def test_ablation_equals_zeroed_projection_columns_in_an_unknown_family(name: str):
    model = locate(name, build(name, **UNKNOWN[name][0]), byte_tokenizer())
    tokens, heads = torch.arange(5, 25)[None], HeadSet.parse("L0H1,L2H3")
    with ablate(model, heads):
        ablated = model.causal_lm(tokens, use_cache=False).logits
    with zeroed_projection_columns(model, heads):
        expected = model.causal_lm(tokens, use_cache=False).logits
    torch.testing.assert_close(ablated, expected, atol=1e-5, rtol=1e-5)
    assert not torch.equal(ablated, model.causal_lm(tokens, use_cache=False).logits)


def test_a_family_whose_logits_are_more_than_norm_and_head_runs_the_plain_way(caplog: pytest.LogCaptureFixture):
    model = locate("scaled", build("Granite", **_GATED, logits_scaling=8.0), byte_tokenizer())
    verify_heads(model)
    with caplog.at_level(logging.WARNING):
        engine = build_engine(model)
    assert isinstance(engine, PlainEngine)
    assert "scaled (granite): shared computation is off" in caplog.text
    [block] = engine.score([INTACT], [[Request((5, 6, 7), (8, 9))]])
    logits = model.causal_lm(torch.tensor([[5, 6, 7, 8]])).logits[0].log_softmax(-1)
    assert block.scores.logprob_nats[0, 0] == pytest.approx((logits[2, 8] + logits[3, 9]).item(), abs=1e-4)


def test_every_supported_family_runs_the_fast_way(tiny: Model):
    assert disagreement(tiny) is None


def test_each_family_of_the_table_is_built_by_the_tests():
    assert {build_tiny(family).family for family in TINY} == {
        "llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3_text", "phi3", "olmo2", "gpt2", "gpt_neox"
    }  # fmt: skip
