"""Estimate what removing each head does to an example's margin, all heads at once: one forward and one backward pass.

Every head's output ``z`` is multiplied by a gate of 1; the margin's derivative by that gate is the sum over tokens of
gradient times ``z``, and moving the gate from 1 to 0 changes the margin, to first order, by its negative. Source: attribution
patching with a zero baseline (Nanda 2023; Syed, Rager, Conmy, arXiv 2310.10348).

It is an estimate: it says which heads to look at first, never what a head does. It reads the margin where `cel_core.evaluation`
does, but a head that acts through later heads' attention patterns, or that is removed from far away, is only roughly caught.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cel_core.layers import last_hidden, next_logits
from cel_core.models import Model
from cel_core.packing import pack
from cel_core.prompts import Request


class Attribution(NamedTuple):
    """One example's margin and the estimated change of it, in nats."""

    margin_nats: float
    change_nats: np.ndarray  # (n_layers, n_heads), by removing that head
    token_layers: float  # run for it; a backward pass costs two forward ones


def attribute(model: Model, requests: Sequence[Request], lengths: Sequence[int], gold: int) -> Attribution:
    """Estimate every head's effect on one example.

    Args:
        model: the model; packed sequences must be exact for it (`cel_core.engine.disagreement`).
        requests: the example's requests. One alone is scored greedily: its margin is the smallest gap over its tokens between
            the token and the best other one. Of several, the margin is the gold one's merit less the best other one's.
        lengths: what each request's log-probability is divided by to be its merit: its characters, or 1.
        gold: which request is right.
    """
    n_layers, n_heads = model.geometry[:2]
    [packed] = pack([requests], 1)  # one example is one pack, however long
    gates = torch.ones(n_layers, n_heads, device=model.device, requires_grad=True)
    with torch.enable_grad(), ExitStack() as hooks:
        for projection, gate in zip(model.projections, gates, strict=True):
            handle = projection.register_forward_pre_hook(_gated(gate, model.geometry.d_head))
            hooks.callback(handle.remove)
        hidden = last_hidden(model, packed)[0, torch.from_numpy(packed.read_at).to(model.device)]
        logits = next_logits(model, hidden)[torch.from_numpy(packed.scored_read).to(model.device)]
        token = torch.from_numpy(packed.scored_token).to(model.device)[:, None]
        if len(requests) == 1:
            others = logits.scatter(1, token, -torch.inf)
            margin = (logits.gather(1, token)[:, 0] - others.max(-1).values).min()
        else:
            logprobs = logits.log_softmax(-1).gather(1, token)[:, 0].split(packed.n_scored.tolist())
            merits = torch.stack([part.sum() / length for part, length in zip(logprobs, lengths, strict=True)])
            margin = merits[gold] - torch.cat([merits[:gold], merits[gold + 1 :]]).max()
        [slope] = torch.autograd.grad(margin, gates)
    return Attribution(margin.item(), -slope.double().cpu().numpy(), 3.0 * len(packed.tokens) * n_layers)


def _gated(gate: Tensor, d_head: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = inputs[0]  # (1, pos, n_heads * d_head)
        return ((z.unflatten(-1, (-1, d_head)) * gate[:, None].to(z.dtype)).flatten(-2), *inputs[1:])

    return hook
