"""Algorithm 1 of "Can Capability Enhancement be Localized?" (arXiv 2610.21294, section 3.2).

1. Screen every head alone on the discovery examples; the `p` best form the pool.
2. Enumerate every subset of the pool of 1 to `k` heads; sets of one head reuse stage 1. The best is frozen.

The order, in both stages: higher gain, then fewer harms, then higher accuracy, then fewer heads, then the heads as numbers
(layer, index). The held-out comparison is not here: this module sees discovery examples only, by number, and asks for their
outcomes through a callable. It knows no model, no tensor and no file.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from cel_core.heads import INTACT, Head, HeadSet

# whether each set answers each example right, (n_sets, n_examples) bool; examples are given by number
Outcomes = Callable[[Sequence[HeadSet], Sequence[int]], np.ndarray]


class Tally(NamedTuple):
    """One head set on the discovery examples, beside the intact model."""

    head_set: HeadSet
    fixes: int  # intact wrong, ablated right
    harms: int  # intact right, ablated wrong
    n_correct: int
    n: int  # examples in all

    @property
    def gain(self) -> float:
        """Accuracy without the heads minus intact accuracy, as a fraction."""
        return (self.fixes - self.harms) / self.n

    @property
    def accuracy(self) -> float:
        """Accuracy without the heads, as a fraction."""
        return self.n_correct / self.n

    @property
    def order(self) -> tuple[int, int, int, int, tuple[Head, ...]]:
        """Sorts the better set first."""
        return self.harms - self.fixes, self.harms, -self.n_correct, len(self.head_set), self.head_set.heads


class Result(NamedTuple):
    """What a search found on the discovery examples."""

    singles: list[Tally]  # every head alone, best first
    subsets: list[Tally]  # every subset of the pool, best first
    pool: list[Head]  # in rank order
    frozen: Tally


def screen(heads: Sequence[Head], n_examples: int, outcomes: Outcomes) -> list[Tally]:
    """Stage 1: every head alone, best first."""
    examples = range(n_examples)
    intact = outcomes([INTACT], examples)[0]
    return tally([HeadSet((head,)) for head in heads], intact, examples, outcomes)


def join(singles: Sequence[Tally], p: int, k: int, n_examples: int, outcomes: Outcomes) -> list[Tally]:
    """Stage 2: every subset of the `p` best heads of 1 to `k` heads, best first."""
    pool = pool_of(singles, p)
    examples = range(n_examples)
    intact = outcomes([INTACT], examples)[0]
    joint = [HeadSet.of(heads) for size in range(2, k + 1) for heads in combinations(pool, size)]
    return sorted([*singles[:p], *tally(joint, intact, examples, outcomes)], key=lambda found: found.order)


def run(heads: Sequence[Head], n_examples: int, p: int, k: int, outcomes: Outcomes) -> Result:
    """Both stages, as one call."""
    singles = screen(heads, n_examples, outcomes)
    subsets = join(singles, p, k, n_examples, outcomes)
    return Result(singles, subsets, pool_of(singles, p), subsets[0])


def pool_of(singles: Sequence[Tally], p: int) -> list[Head]:
    """The heads of the `p` best single-head sets, in rank order."""
    return [head for found in singles[:p] for head in found.head_set]


def n_subsets(p: int, k: int) -> int:
    """How many subsets of 1 to `k` heads a pool of `p` has: 175 for the paper's 10 and 3."""
    return sum(comb(p, size) for size in range(1, k + 1))


def tally(head_sets: Sequence[HeadSet], intact: np.ndarray, examples: Sequence[int], outcomes: Outcomes) -> list[Tally]:
    """Fixes and harms of each set, best first."""
    if not head_sets:
        return []
    correct = outcomes(head_sets, examples)  # (n_sets, n_examples)
    fixes = (correct & ~intact).sum(axis=1)
    harms = (~correct & intact).sum(axis=1)
    found = [
        Tally(head_set, int(fixed), int(harmed), int(right), len(intact))
        for head_set, fixed, harmed, right in zip(head_sets, fixes, harms, correct.sum(axis=1), strict=True)
    ]
    return sorted(found, key=lambda one: one.order)
