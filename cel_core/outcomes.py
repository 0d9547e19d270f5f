"""Outcomes: what one model answered to some examples under some head sets, under one protocol.

They come in rectangles, as they are computed, and are kept as a table with one row for each head set and example.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cel_core.heads import HeadSet


class Outcomes(NamedTuple):
    """Outcomes of every one of some examples under every one of some head sets; arrays are ``(n_sets, n_examples)``."""

    head_sets: list[HeadSet]
    examples: list[str]  # keys
    correct: np.ndarray
    # the chosen index for choices; for greedy scoring what the model itself would have written, as far as scoring saw it;
    # for programs the program
    answer: np.ndarray
    # best gold minus best other choice (per character where scored so), or the smallest gap over the gold tokens between
    # gold and the best other token; NaN for programs
    margin_nats: np.ndarray
    logprobs_nats: np.ndarray  # (n_sets, n_examples, n_continuations), of each continuation in order
    detail: np.ndarray  # why a program failed


def as_table(blocks: Sequence[Outcomes]) -> pa.Table:
    """One row an outcome: head_set, example, correct, answer, margin_nats, logprobs_nats, detail."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(block, name).ravel() for block in blocks])

    n_logprobs = np.concatenate([np.full(block.correct.size, block.logprobs_nats.shape[-1]) for block in blocks])
    ends = np.concatenate([[0], np.cumsum(n_logprobs)])
    return pa.table(
        {
            "head_set": np.concatenate([np.repeat(list(map(str, block.head_sets)), len(block.examples)) for block in blocks]),
            "example": np.concatenate([np.tile(block.examples, len(block.head_sets)) for block in blocks]),
            "correct": joined("correct"),
            "answer": pa.array(joined("answer"), pa.string()),
            "margin_nats": joined("margin_nats"),
            "logprobs_nats": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), joined("logprobs_nats")),
            "detail": pa.array(joined("detail"), pa.string()),
        }
    )
