"""Load a causal language model and find where its attention heads enter the output projection.

1. `read_config` resolves what the user named (`demo`, a hub id, a local folder, a ``.gguf`` file) and refuses, before any
   weight is read, what is not a causal text model.
2. `load_model` reads the weights in a dtype that suits the device and locates, per layer, the attention output projection.
   The quirks of the known families are the rows of `FAMILIES`; another family is located by its structure.
3. The location is believed only after an experiment (`verify_heads` in `cel_core.ablation`).

The site of a head: the *input* of the output projection, slice ``[h * d_head, (h + 1) * d_head)`` with
``d_head = in_features / n_heads``. Not covered: encoder-decoders, models without attention, models that need remote code.
"""

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from cel_core.errors import ModelError
from cel_core.paths import typed_path

DEMO_MODEL = Path(__file__).resolve().parent.parent / "data" / "demo_model"


class Family(NamedTuple):
    """Names of the parts of one model family, as dotted paths."""

    blocks: str  # the decoder layers, from the causal language model
    projection: str  # the attention output projection, from a decoder layer
    norm: str  # the normalisation after the last layer, from the causal language model


_LLAMA_LIKE = Family("model.layers", "self_attn.o_proj", "model.norm")
FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3_text", "phi3", "olmo2"), _LLAMA_LIKE),
    "gpt2": Family("transformer.h", "attn.c_proj", "transformer.ln_f"),
    "gpt_neox": Family("gpt_neox.layers", "attention.dense", "gpt_neox.final_layer_norm"),
}


class Geometry(NamedTuple):
    """How many heads a model has and how wide they are."""

    n_layers: int
    n_heads: int  # query heads per layer: the heads that can be removed
    n_kv_heads: int
    d_head: int  # width of one head's output, in the input of the output projection

    @property
    def n_total_heads(self) -> int:
        """All query heads of the model."""
        return self.n_layers * self.n_heads


@dataclass(frozen=True)
class Model:
    """A loaded causal language model with its parts located.

    `blocks[l]` is decoder layer l, `projections[l]` its attention output projection, `norm` and `head` what turns the last
    layer's output into logits. `fingerprint` identifies weights, architecture and tokenizer by content.
    """

    spec: str
    family: str
    geometry: Geometry
    dtype: str
    device: torch.device
    causal_lm: Any  # a transformers *ForCausalLM in evaluation mode
    tokenizer: Any
    blocks: tuple[nn.Module, ...]
    projections: tuple[nn.Module, ...]
    norm: nn.Module
    head: nn.Module
    n_vocabulary: int
    max_length: int  # tokens the model can read at once
    fingerprint: str


def read_config(spec: str) -> tuple[Any, str]:
    """Resolve `spec` and return its configuration and the path or hub id to load from.

    Raises:
        ModelError: nothing is found there, or it is not a causal text model.
    """
    source = str(DEMO_MODEL) if spec == "demo" else _converted_gguf(spec) if spec.lower().endswith(".gguf") else spec
    if _looks_like_path(source) and not typed_path(source).is_dir():
        raise ModelError(f"model '{spec}' is not a folder: give a Hugging Face folder, a .gguf file, a hub id or 'demo'")
    source = str(typed_path(source)) if typed_path(source).is_dir() else source
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise ModelError(f"model folder '{spec}' has no config.json: give a folder written by save_pretrained")
    try:
        config = AutoConfig.from_pretrained(source)
    except Exception as error:  # the hub client raises many kinds; all mean that the model cannot be had
        raise ModelError(
            f"model '{spec}' cannot be read ({_first_line(error)}): check its name or path, or give 'demo'"
        ) from error
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"model '{spec}' is an encoder-decoder ({config.model_type}): give a decoder-only language model")
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"model '{spec}' is no causal language model (its type is '{config.model_type}'): give a decoder-only text model"
        )
    if not isinstance(getattr(config.get_text_config(), "num_attention_heads", None), int):
        raise ModelError(
            f"model '{spec}' has no fixed number of attention heads per layer (its type is '{config.model_type}'): give a "
            "decoder-only transformer"
        )
    return config, source


def geometry_of(config: Any) -> Geometry:
    """The head counts a configuration declares; `d_head` is checked against the weights on load."""
    text = config.get_text_config()
    try:
        n_heads = text.num_attention_heads
        d_head = getattr(text, "head_dim", None) or text.hidden_size // n_heads
        return Geometry(text.num_hidden_layers, n_heads, getattr(text, "num_key_value_heads", None) or n_heads, d_head)
    except AttributeError as error:  # also where a configuration says that layers differ
        raise ModelError(
            f"a model of type '{config.model_type}' does not have the same heads in every layer: it is not supported"
        ) from error


def default_device() -> torch.device:
    """The fastest device at hand: CUDA, then Apple's, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_dtype(device: torch.device, dtype: str = "auto") -> str:
    """`dtype`, or for ``auto``: float32 on a CPU (bfloat16 is emulated on most), bfloat16 where the accelerator has it."""
    if dtype != "auto":
        return dtype
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "bfloat16" if device.type == "mps" else "float32"


def load_model(spec: str, device: str = "auto", dtype: str = "auto") -> Model:
    """Load a model and locate its heads.

    Args:
        spec: ``demo``, a hub id, a local folder or a ``.gguf`` file.
        device: ``auto`` or a torch device such as ``cpu``, ``cuda:0``, ``mps``.
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.

    Raises:
        ModelError: it cannot be loaded there, or its heads cannot be located.
    """
    config, source = read_config(spec)
    chosen = default_device() if device == "auto" else _device(device)
    dtype = choose_dtype(chosen, dtype)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype), output_loading_info=True)
        causal_lm, report = loaded
        if report["missing_keys"]:  # the loader would go on with random numbers
            raise ValueError(f"no weights for {min(report['missing_keys'])}")
        tokenizer = AutoTokenizer.from_pretrained(source)
        causal_lm = causal_lm.to(chosen).eval().requires_grad_(False)
    except Exception as error:  # files missing or damaged, no memory on the device: the loader raises many kinds
        raise ModelError(
            f"model '{spec}' cannot be loaded on {chosen} as {dtype} ({_first_line(error)}): check its files, or choose "
            "another device or dtype"
        ) from error
    return locate(spec, causal_lm, tokenizer)


def locate(spec: str, causal_lm: Any, tokenizer: Any) -> Model:
    """Find the parts of a causal language model that is already in memory.

    Raises:
        ModelError: its heads cannot be located.
    """
    config = causal_lm.config
    declared = geometry_of(config)
    family = FAMILIES.get(config.model_type) or _family_by_structure(spec, causal_lm, declared)
    blocks = tuple(causal_lm.get_submodule(family.blocks))
    projections = tuple(block.get_submodule(family.projection) for block in blocks)
    d_head, rest = divmod(in_features(projections[0]), declared.n_heads)
    if rest or len(set(map(in_features, projections))) > 1 or len(blocks) != declared.n_layers:
        raise ModelError(
            f"model '{spec}': {len(blocks)} layers whose output projection reads {in_features(projections[0])} values do not "
            f"fit the {declared.n_layers} layers of {declared.n_heads} heads it declares; this architecture is not supported"
        )
    text = config.get_text_config()
    return Model(
        spec=spec,
        family=config.model_type,
        geometry=declared._replace(d_head=d_head),
        dtype=str(causal_lm.dtype).removeprefix("torch."),
        device=causal_lm.device,
        causal_lm=causal_lm,
        tokenizer=tokenizer,
        blocks=blocks,
        projections=projections,
        norm=causal_lm.get_submodule(family.norm),
        head=causal_lm.get_output_embeddings(),
        n_vocabulary=causal_lm.get_output_embeddings().weight.shape[0],
        max_length=getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 2048,
        fingerprint=fingerprint(causal_lm, tokenizer),
    )


def in_features(projection: nn.Module) -> int:
    """Width of what a projection reads; GPT-2's Conv1D keeps its matrix transposed."""
    weight = projection.get_parameter("weight")
    return weight.shape[0] if isinstance(projection, Conv1D) else weight.shape[1]


def fingerprint(causal_lm: Any, tokenizer: Any) -> str:
    """A hash of everything in a model that can change an answer: architecture, every weight, the tokenizer."""

    def digest(item: tuple[str, torch.Tensor]) -> bytes:
        name, tensor = item
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return hashlib.sha256(name.encode() + str(tuple(tensor.shape)).encode() + data.data).digest()

    # what a configuration says about files and versions changes no answer; the dtype is a part of the protocol by itself
    unrelated = {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "quantization_config"}
    config = {k: v for k, v in causal_lm.config.to_dict().items() if k not in unrelated and not k.startswith("_")}
    ends = getattr(causal_lm.generation_config, "eos_token_id", None)
    whole = hashlib.sha256(json.dumps([config, ends], sort_keys=True, default=str).encode())
    with ThreadPoolExecutor(4) as pool:  # hashing releases the interpreter lock
        for part in pool.map(digest, sorted(causal_lm.state_dict().items())):
            whole.update(part)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    whole.update((backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))).encode())
    return whole.hexdigest()[:32]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(f"device '{name}' is not available here: give 'auto', 'cpu', 'cuda' or 'mps'") from error
    return device


def _looks_like_path(source: str) -> bool:
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".:")


def _family_by_structure(spec: str, causal_lm: Any, declared: Geometry) -> Family:
    """Locate the parts of an unknown family: the stack of decoder layers, and in each the one projection out of attention."""
    stacks = [
        (name, module)
        for name, module in causal_lm.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == declared.n_layers and "vision" not in name
    ]
    for name, stack in stacks:
        found = [
            path
            for path, module in stack[0].named_modules()
            if "att" in path.lower()
            and path.rsplit(".", 1)[-1] in ("o_proj", "out_proj", "c_proj", "dense", "wo", "proj")
            and isinstance(module, nn.Linear | Conv1D)
            and in_features(module) == declared.n_heads * declared.d_head
        ]
        parent = name.rsplit(".", 1)[0] if "." in name else ""
        norms = [child for child, _ in causal_lm.get_submodule(parent).named_children() if "norm" in child or child == "ln_f"]
        if len(found) == 1 and norms and all(found[0] in dict(block.named_modules()) for block in stack):
            return Family(name, found[0], f"{parent}.{norms[-1]}".lstrip("."))
    raise ModelError(
        f"model '{spec}' ('{causal_lm.config.model_type}'): its attention output projections cannot be located; supported are "
        + ", ".join(sorted(FAMILIES))
    )


def _converted_gguf(spec: str) -> str:
    """The safetensors folder made from a ``.gguf`` file; de-quantising takes half a minute, so it is done once and kept."""
    path = typed_path(spec)
    if not path.is_file():
        raise ModelError(f"model file '{spec}' does not exist: check the path")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"model file '{spec}' is not a GGUF file: give one that starts with the bytes GGUF")
        file.seek(0)
        content = hashlib.file_digest(file, "sha256").hexdigest()[:24]
    target = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cel" / "gguf" / content
    if (target / "config.json").is_file():
        return str(target)
    partial = target.with_name(f"{content}.{os.getpid()}.partial")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        # transformers refuses to save what it believes is still quantised; these tensors are plain float32 by now
        model.config.__dict__.pop("quantization_config", None)
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.replace(target)
    except Exception as error:  # an unknown architecture, a damaged file, a full disk
        shutil.rmtree(partial, ignore_errors=True)
        if (target / "config.json").is_file():  # another process was faster
            return str(target)
        raise ModelError(f"model file '{spec}' cannot be converted ({_first_line(error)}): give a folder instead") from error
    return str(target)
