"""Run a stretch of a model's decoder layers, from any layer's input to the logits at a few places.

1. `Trace.of` runs the intact model over one sequence up to its last layer and keeps, for every layer, its input and the
   arguments it was called with. Calling a layer again with the same arguments and another input is exact for every family,
   since the family's own code made them.
2. `run` starts from some layer's input and goes up. Below the lowest layer that differs nothing is computed again.
3. The last layer is run only for the tokens whose output is read: first it is run on all tokens as far as its keys and
   values (a cache that takes them and stops the layer), then on the read tokens against those.

Logits are computed only where they are read. Nothing here knows a family by name.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cel_core.models import Model
from cel_core.packing import Pack

_CACHE_NAMES = ("cache", "past_key_values", "layer_past", "past_key_value")


class _Stop(Exception):
    """Leaves a forward pass once what is wanted of it is known."""


class _KeysAndValues:
    """Stands in for a layer's key-value cache: takes the keys and values and stops, or gives those it was given."""

    def __init__(self, taken: tuple[Tensor, Tensor] | None = None) -> None:
        self.taken = taken

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self.taken is None:
            self.taken = keys, values
            raise _Stop
        return self.taken

    def get_seq_length(self, *_: Any) -> int:
        return 0


@dataclass(frozen=True)
class Trace:
    """What the intact model did with one pack."""

    model: Model
    pack: Pack
    inputs: list[Tensor]  # per layer, its input (1, n_tokens, d_model)
    arguments: list[dict[str, Any]]  # per layer, all that it was called with besides

    @classmethod
    def of(cls, model: Model, pack: Pack) -> "Trace":
        """Run the intact model over a pack, up to the input of its last layer."""
        inputs: list[Tensor] = []
        arguments: list[dict[str, Any]] = []

        def keep(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            bound = inspect.signature(block.forward).bind(*args, **kwargs).arguments
            bound |= bound.pop("kwargs", {})
            inputs.append(bound.pop(next(iter(bound))))
            arguments.append(bound)
            if len(inputs) == len(model.blocks):
                raise _Stop

        handles = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in model.blocks]
        try:
            last_hidden(model, pack)
        except _Stop:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return cls(model, pack, inputs, arguments)

    @property
    def n_bytes(self) -> int:
        """Memory held by the layer inputs, and by the masks and position embeddings that all layers share."""
        shared: dict[int, int] = {}
        for arguments in self.arguments:
            for tensor in _tensors(arguments):
                shared[tensor.data_ptr()] = tensor.nbytes
        return sum(x.nbytes for x in self.inputs) + sum(shared.values())

    def run(self, start: int, hidden: Tensor, keep: frozenset[int], to_end: bool) -> tuple[dict[int, Tensor], Tensor | None]:
        """Run layers `start` and up from the input `hidden`, ``(batch, n_tokens, d_model)``.

        Args:
            start: the first layer to run.
            hidden: its input.
            keep: layers whose inputs are wanted.
            to_end: run up to the last layer's output; otherwise only as far as the highest layer in `keep`.

        Returns:
            The inputs of the layers in `keep`; and, at the end, the last layer's output at the read tokens,
            ``(batch, n_reads, d_model)``.
        """
        kept: dict[int, Tensor] = {}
        last = len(self.model.blocks) - 1
        for layer in range(start, last + 1 if to_end else max(keep) + 1):
            if layer in keep:
                kept[layer] = hidden
            if layer == last and to_end:
                return kept, self._last_layer(hidden)
            if to_end or layer < max(keep):
                hidden = _output(self.model.blocks[layer](hidden, **self.arguments[layer]))
        return kept, None

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits of the last layer's output, in float32."""
        return next_logits(self.model, self.model.norm(hidden))

    def _last_layer(self, hidden: Tensor) -> Tensor:
        """The last layer's output at the read tokens, ``(batch, n_reads, d_model)``."""
        block, arguments = self.model.blocks[-1], self.arguments[-1]
        read_at = torch.from_numpy(self.pack.read_at).to(hidden.device)
        name = next((name for name in _CACHE_NAMES if name in inspect.signature(block.forward).parameters), None)
        if name is None:
            return _output(block(hidden, **arguments))[:, read_at]
        cache = _KeysAndValues()
        try:
            block(hidden, **arguments | {name: cache})
        except _Stop:
            pass
        n_tokens = hidden.shape[1]
        selected = {key: _at(value, read_at, n_tokens) for key, value in arguments.items()}
        return _output(block(hidden[:, read_at], **selected | {name: cache}))


def last_hidden(model: Model, pack: Pack) -> Tensor:
    """Run a model over a pack: the last layer's output after the final normalisation, ``(1, n_tokens, d_model)``."""
    return model.causal_lm.base_model(
        input_ids=torch.from_numpy(pack.tokens)[None].to(model.device),
        attention_mask=_masks(model, pack),
        position_ids=torch.from_numpy(pack.positions)[None].to(model.device),
        use_cache=False,
    ).last_hidden_state


def next_logits(model: Model, normed: Tensor) -> Tensor:
    """Next-token logits, in float32, of hidden states after the final normalisation."""
    logits = model.head(normed).float()
    softcap = getattr(model.causal_lm.config.get_text_config(), "final_logit_softcapping", None)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _output(value: Any) -> Tensor:
    return value[0] if isinstance(value, tuple) else value


def _at(value: Any, read_at: Tensor, n_tokens: int) -> Any:
    """A layer's argument for the read tokens alone: masks lose query rows, per-token arguments lose tokens."""
    if isinstance(value, tuple | list):
        return type(value)(_at(part, read_at, n_tokens) for part in value)
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 4 and value.shape[-2:] == (n_tokens, n_tokens):
        return value[:, :, read_at]
    return value[:, read_at] if value.ndim >= 2 and value.shape[1] == n_tokens else value


def _masks(model: Model, pack: Pack) -> Tensor | dict[str, Tensor]:
    """The additive attention mask ``(1, 1, n_tokens, n_tokens)``, or one for each kind of layer where a model mixes kinds."""

    def additive(window: int | None) -> Tensor:
        allowed = torch.from_numpy(pack.attends(window)).to(model.device)
        dtype = model.causal_lm.dtype
        return torch.zeros(allowed.shape, dtype=dtype, device=model.device).masked_fill(~allowed, torch.finfo(dtype).min)[
            None, None
        ]

    text = model.causal_lm.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    window = getattr(text, "sliding_window", None)
    if "sliding_attention" in kinds:
        return {"full_attention": additive(None), "sliding_attention": additive(window)}
    uses_window = window is not None and getattr(text, "use_sliding_window", True)
    return additive(window if uses_window else None)
