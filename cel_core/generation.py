"""Write answers greedily, many prompts and head sets in one batch.

1. Tokens that all prompts share at their start are run once per head set, and their keys and values handed to every row.
2. The rest of each prompt is padded on the left; positions are given explicitly and padding is masked, so a prompt's answer
   does not depend on its neighbours.
3. Each step every row takes its likeliest token, after the repetition penalty (Keskar et al., 2019) where the model's own
   generation settings ask for one, as its authors, transformers and lm-evaluation-harness apply it to greedy answers too.
4. A row leaves once its text holds its stop string, at an end-of-sequence token, or after the allowed number of tokens.

Not covered: sampling, beams.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from cel_core.ablation import ablate
from cel_core.heads import HeadSet
from cel_core.models import Model

log = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """What to go on from, and the text to stop at."""

    tokens: Sequence[int]
    stop: str = ""


@dataclass
class _Row:
    index: int
    prompt: Prompt
    head_set: HeadSet
    written: list[int] = field(default_factory=list)


@torch.inference_mode()
def write(
    model: Model, head_sets: Sequence[HeadSet], prompts: Sequence[Prompt], max_new_tokens: int, batch_size: int = 32
) -> list[list[list[int]]]:
    """Greedy answers of every head set to every prompt.

    Args:
        model: the model.
        head_sets: the sets to remove, each for itself.
        prompts: what to go on from; a prompt too long for the model loses tokens on its left.
        max_new_tokens: tokens of an answer, at most.
        batch_size: rows (a prompt under a head set) in one forward pass.

    Returns:
        Token ids by head set and prompt, the end-of-sequence token left out.
    """
    room = max(1, model.max_length - max_new_tokens)
    rows = [
        _Row(number, Prompt(list(prompt.tokens)[-room:], prompt.stop), head_set)
        for number, (head_set, prompt) in enumerate((s, p) for s in head_sets for p in prompts)
    ]
    prefix = _shared_prefix(model, [prompt.tokens[-room:] for prompt in prompts])
    # rows of one head set stand together, so that few prefixes are run per batch; long prompts first waste least padding
    rows.sort(key=lambda row: (row.head_set, -len(row.prompt.tokens)))
    answers: list[list[int]] = [[] for _ in rows]
    while rows:
        try:
            done = _write_batch(model, rows[:batch_size], prefix, max_new_tokens)
        except torch.OutOfMemoryError:
            if batch_size == 1:
                raise
            batch_size //= 2
            log.warning("out of memory on %s: going on with %d answers at once", model.device, batch_size)
            for row in rows:
                row.written.clear()
            continue
        rows = rows[len(done) :]
        for row in done:
            answers[row.index] = row.written
    return [answers[i * len(prompts) : (i + 1) * len(prompts)] for i in range(len(head_sets))]


def decode(model: Model, tokens: Sequence[int]) -> str:
    """Text of an answer, special tokens left out."""
    return model.tokenizer.decode(tokens, skip_special_tokens=True)


def _shared_prefix(model: Model, prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens all prompts start with; none where a sliding window counts places in the cache, padding included."""
    text = model.causal_lm.config.get_text_config()
    if len(prompts) < 2 or getattr(text, "sliding_window", None):
        return []
    low, high = min(map(list, prompts)), max(map(list, prompts))
    shared = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return list(low[: min(shared, min(map(len, prompts)) - 1)])


def _write_batch(model: Model, rows: list[_Row], prefix: list[int], max_new_tokens: int) -> list[_Row]:
    done: list[_Row] = []
    ends = _end_tokens(model)
    width = max(len(row.prompt.tokens) for row in rows) - len(prefix)
    pad = 0
    tokens = [[pad] * (width - len(rest)) + rest for rest in (list(row.prompt.tokens[len(prefix) :]) for row in rows)]
    read = [[1] * len(prefix) + [0] * (width - n) + [1] * n for n in (len(row.prompt.tokens) - len(prefix) for row in rows)]
    step = torch.tensor(tokens, device=model.device)
    mask = torch.tensor(read, device=model.device)  # (rows, prefix + width and, later, written tokens)
    cache = _prefix_cache(model, rows, prefix)
    seen = torch.zeros(len(rows), model.n_vocabulary, dtype=torch.bool, device=model.device)
    for row, spoken in zip(rows, seen, strict=True):
        spoken[torch.tensor(row.prompt.tokens, device=model.device)] = True
    while rows:
        with ablate(model, [row.head_set for row in rows]):
            while True:
                chosen = _penalised(_next_logits(model, step, mask, cache), seen, repetition_penalty(model)).argmax(-1)
                seen.scatter_(1, chosen[:, None], True)
                for row, token in zip(rows, chosen.tolist(), strict=True):
                    row.written.append(token)
                going = [i for i, row in enumerate(rows) if not _finished(model, row, ends, max_new_tokens)]
                step, mask = chosen[:, None], torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
                if len(going) < len(rows):
                    break
        done += [row for i, row in enumerate(rows) if i not in going]
        rows = [rows[i] for i in going]
        if rows:
            kept = torch.tensor(going, device=model.device)
            step, mask, seen = step[kept], mask[kept], seen[kept]
            cache.batch_select_indices(kept)
    for row in done:
        if row.written[-1] in ends:
            row.written.pop()
    return done


def _prefix_cache(model: Model, rows: list[_Row], prefix: list[int]) -> Any:
    """Keys and values of the shared prefix, one batch row a row: run once per distinct head set, then handed out."""
    cache = DynamicCache(config=model.causal_lm.config)
    if prefix:
        head_sets = sorted({row.head_set for row in rows})
        shared = torch.tensor([prefix] * len(head_sets), device=model.device)
        with ablate(model, head_sets):
            _next_logits(model, shared, torch.ones_like(shared), cache)
        cache.batch_select_indices(torch.tensor([head_sets.index(row.head_set) for row in rows], device=model.device))
    return cache


def repetition_penalty(model: Model) -> float:
    """What the model's own generation settings divide a repeated token's score by; 1 where they say nothing."""
    return getattr(model.causal_lm.generation_config, "repetition_penalty", None) or 1.0


def _penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits ``(rows, n_vocabulary)`` with those of tokens that a row has read or written brought down."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def _next_logits(model: Model, step: Tensor, mask: Tensor, cache: Any) -> Tensor:
    """Run `step`, ``(rows, n_tokens)``, after what the cache holds; next-token logits ``(rows, n_vocabulary)``, float32."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -step.shape[1] :]
    output = model.causal_lm(
        input_ids=step, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
    )
    return output.logits[:, -1].float()


def _end_tokens(model: Model) -> set[int]:
    declared = getattr(model.causal_lm.generation_config, "eos_token_id", None)
    ends = set(declared if isinstance(declared, list) else [declared]) | {model.tokenizer.eos_token_id}
    return {end for end in ends if end is not None}


def _finished(model: Model, row: _Row, ends: set[int], max_new_tokens: int) -> bool:
    if row.written[-1] in ends or len(row.written) >= max_new_tokens:
        return True
    # a stop string ends in the last token, so decoding as many tokens as it has letters (and one more) finds it
    stop = row.prompt.stop
    return bool(stop) and stop in model.tokenizer.decode(row.written[-len(stop) - 8 :])
