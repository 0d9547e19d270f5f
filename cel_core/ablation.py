"""Remove attention heads: zero their outputs ``z`` at every token, before the attention output projection.

Source: Nguyen, Bair, Kolter, "Can Capability Enhancement be Localized?" (arXiv 2610.21294), section 3.1. Nothing else
changes: no weight is touched, and the hooks are gone when the context is left, also after an exception.

`verify_heads` is the experiment that a located model must pass before anything it computes is believed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from cel_core.errors import ModelError
from cel_core.heads import INTACT, Head, HeadSet
from cel_core.models import Model


@contextmanager
def ablate(model: Model, head_sets: HeadSet | Sequence[HeadSet]) -> Iterator[None]:
    """Remove heads from every forward pass made inside the context.

    Args:
        model: the model to act on.
        head_sets: one set for all rows of the batch, or one set per row.

    Raises:
        HeadError: a head is not in the model.
    """
    rows = [head_sets] if isinstance(head_sets, HeadSet) else list(head_sets)
    geometry = model.geometry
    removed: dict[int, Tensor] = {}  # layer -> (rows, 1, n_heads, 1), True where a head's output becomes zero
    for row, head_set in enumerate(rows):
        for head in head_set.within(geometry.n_layers, geometry.n_heads):
            mask = removed.setdefault(head.layer, torch.zeros(len(rows), 1, geometry.n_heads, 1, dtype=torch.bool))
            mask[row, 0, head.index, 0] = True
    with ExitStack() as hooks:
        for layer, mask in removed.items():
            handle = model.projections[layer].register_forward_pre_hook(_zero(mask.to(model.device), geometry.d_head))
            hooks.callback(handle.remove)
        yield


def _zero(mask: Tensor, d_head: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = inputs[0]  # (batch, pos, n_heads * d_head)
        return (z.unflatten(-1, (-1, d_head)).masked_fill(mask, 0).flatten(-2), *inputs[1:])

    return hook


@contextmanager
def zeroed_projection_columns(model: Model, heads: HeadSet) -> Iterator[None]:
    """The same removal done on the weights: the columns of the projection that read the heads are zero inside the context.

    This is the independent computation that `ablate` is checked against; columns are rows in GPT-2's transposed Conv1D.
    """
    d_head = model.geometry.d_head
    kept: list[tuple[Tensor, Tensor]] = []
    try:
        for head in heads:
            projection = model.projections[head.layer]
            weight = projection.get_parameter("weight").data
            columns = weight.T if isinstance(projection, Conv1D) else weight
            read = columns[:, head.index * d_head : (head.index + 1) * d_head]
            kept.append((read, read.clone()))
            read.zero_()
        yield
    finally:
        for read, values in kept:
            read.copy_(values)


@torch.inference_mode()
def verify_heads(model: Model) -> None:
    """Check by experiment that the located site is the heads' output, and that the model reads left to right.

    One head of every layer is removed, a different index in each. Four things must hold: removing nothing changes no bit;
    removing heads changes the logits; it equals zeroing the projection's columns; a later token changes nothing before it.

    Raises:
        ModelError: one of them does not hold.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.n_vocabulary, (1, 9), generator=generator).to(model.device)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % model.n_vocabulary
    n_layers, n_heads = model.geometry.n_layers, model.geometry.n_heads
    probe = HeadSet.of(Head(layer, layer % n_heads) for layer in range(n_layers))

    def logits(of: Tensor) -> Tensor:
        return model.causal_lm(input_ids=of, use_cache=False).logits.float()

    intact = logits(tokens)
    with ablate(model, INTACT):
        untouched = logits(tokens)
    with ablate(model, probe):
        ablated = logits(tokens)
    with zeroed_projection_columns(model, probe):
        expected = logits(tokens)
    tolerance = (1e-4 if model.dtype == "float32" else 0.1) * (1 + intact.abs().max().item())
    faults = {
        "it attends to later tokens": not torch.allclose(logits(changed)[:, :-1], intact[:, :-1], atol=tolerance),
        "removing nothing changes its logits": not torch.equal(untouched, intact),
        "removing a head of every layer changes nothing": torch.equal(ablated, intact),
        "removing heads is not the same as zeroing their projection columns": not torch.allclose(
            ablated, expected, atol=tolerance
        ),
    }
    for fault, found in faults.items():
        if found:
            raise ModelError(f"model '{model.spec}' ({model.family}) cannot be searched: {fault}; give a decoder-only model")
