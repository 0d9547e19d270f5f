"""What a search will take, before it is launched: from its rows and its model's configuration, no weight is read.

Evaluations are counted for the full sweep: a bounded search makes fewer, one over known examples fewer still. Time comes from
finished searches of the same model, task, device and dtype, by evaluation; without one it is not guessed. Of several that one
counts which ran most for each evaluation: one that found its outcomes in the store says nothing about the time they take.
"""

from typing import Any, NamedTuple

import torch

from cel_core import search as algorithm
from cel_core.config import SearchConfig
from cel_core.experiment import draw
from cel_core.models import choose_dtype, default_device, geometry_of, read_config
from cel_core.records import SearchRecord, Status
from cel_core.store import Store


class Estimate(NamedTuple):
    """What a search will take at most."""

    n_discovery: int
    n_held_out: int
    n_evaluations: int  # of one example under one head set
    seconds: float | None  # None where no finished search tells the speed
    weight_bytes: int


def estimate(config: SearchConfig, store: Store) -> Estimate:
    """Count what a search will do.

    Raises:
        CelError: the search could not begin, for the reason that launching it would give.
    """
    split = draw(config)
    model = read_config(config.model)[0]
    n_evaluations = _n_evaluations(config, geometry_of(model).n_total_heads, len(split.discovery), len(split.held_out))
    per_evaluation = _seconds_per_evaluation(config, store.searches())
    device = default_device() if config.device == "auto" else torch.device(config.device)
    return Estimate(
        len(split.discovery),
        len(split.held_out),
        n_evaluations,
        None if per_evaluation is None else per_evaluation * n_evaluations,
        n_parameters(model) * getattr(torch, choose_dtype(device, config.dtype)).itemsize,
    )


def n_parameters(config: Any) -> int:
    """How many weights a decoder of this configuration has, within some percent: attention, MLP and embeddings."""
    text, geometry = config.get_text_config(), geometry_of(config)
    inner = getattr(text, "intermediate_size", None)
    mlp = 3 * text.hidden_size * inner if inner else 8 * text.hidden_size**2  # gated, or GPT-2's
    attention = text.hidden_size * geometry.d_head * (2 * geometry.n_heads + 2 * geometry.n_kv_heads)
    embeddings = text.hidden_size * text.vocab_size * (1 if getattr(text, "tie_word_embeddings", True) else 2)
    return geometry.n_layers * (attention + mlp) + embeddings


def _n_evaluations(config: SearchConfig, n_heads: int, n_discovery: int, n_held_out: int) -> int:
    joint = algorithm.n_subsets(config.p, config.k) - config.p
    return (1 + min(n_heads, config.shortlist or n_heads) + joint) * n_discovery + 2 * n_held_out


def _seconds_per_evaluation(config: SearchConfig, records: list[SearchRecord]) -> float | None:
    found: list[tuple[float, float]] = []  # token-layers and seconds, of each evaluation
    for record in records:
        same = all(getattr(record.config, name) == getattr(config, name) for name in ("model", "task", "device", "dtype"))
        if same and record.status is Status.DONE and record.token_layers:
            n = _n_evaluations(record.config, record.n_heads, record.n_discovery, record.n_held_out)
            found.append((record.token_layers / n, record.duration_s / n))
    return max(found)[1] if found else None
