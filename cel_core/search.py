"""Algorithm 1 of "Can Capability Enhancement be Localized?" (arXiv 2610.21294, section 3.2).

1. Screen every head alone on the discovery examples; the `p` best form the pool.
2. Enumerate every subset of the pool of 1 to `k` heads; sets of one head reuse stage 1. The best is frozen.

The order, in both stages: higher gain, then fewer harms, then higher accuracy, then fewer heads, then the heads as numbers
(layer, index). The held-out comparison is not here: this module sees discovery examples only, by number, and asks for their
outcomes through a callable. It knows no model, no tensor and no file.

Both stages ask which sets are the best `count` of many (`best`), and most sets need not be run on every example to know that
they are not among them. Fixes come only from examples the intact model gets wrong. So those are evaluated first: then a set's
fixes are known, and its gain is at most these less its harms so far. Now the sets that can still get furthest are taken
further, a few at a time; once `count` sets are known in full, whatever cannot pass the last of them is dropped. The best sets,
their order and all ties stay exactly those of the full sweep; a dropped set keeps its bounds. The order of the examples
changes only what is evaluated, never what is found: those on which harms show first save most.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from cel_core.heads import INTACT, Head, HeadSet

# whether each set answers each example right, (n_sets, n_examples) bool; examples are given by number
Outcomes = Callable[[Sequence[HeadSet], Sequence[int]], np.ndarray]
# told of evaluations that need not be made after all
Skipped = Callable[[int], None]

CHUNK = 32  # examples evaluated between two looks at the bounds
BREADTH = 8  # sets taken further between two looks at the bounds, once their fixes are known


class Tally(NamedTuple):
    """One head set on the discovery examples, beside the intact model.

    Where it was dropped before its last example (`exact` is False), `fixes` and `n_correct` are the most and `harms` the
    least that it could still have reached, so that `gain` is *at most*.
    """

    head_set: HeadSet
    fixes: int  # intact wrong, ablated right
    harms: int  # intact right, ablated wrong
    n_correct: int
    n: int  # examples in all
    exact: bool = True

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


def screen(
    heads: Sequence[Head],
    p: int,
    examples: Sequence[int],
    outcomes: Outcomes,
    full: bool = True,
    skipped: Skipped = lambda _: None,
) -> list[Tally]:
    """Stage 1: every head alone, best first; the first `p` are the pool, in order and in full.

    Args:
        heads: the heads to screen.
        p: size of the pool.
        examples: the discovery examples' numbers; best those first whose answers are likeliest to change.
        outcomes: answers for head sets and examples.
        full: evaluate every head on every example, also those that cannot reach the pool any more.
        skipped: told of evaluations left out.
    """
    singles = [HeadSet((head,)) for head in heads]
    return best(singles, len(singles) if full else p, examples, outcomes, skipped=skipped)


def join(
    singles: Sequence[Tally],
    p: int,
    k: int,
    examples: Sequence[int],
    outcomes: Outcomes,
    full: bool = True,
    skipped: Skipped = lambda _: None,
) -> list[Tally]:
    """Stage 2: every subset of the `p` best heads of 1 to `k` heads, best first; the first is the set to freeze.

    Args:
        singles: the ranking of stage 1.
        p: size of the pool.
        k: heads in a subset, at most.
        examples: the discovery examples' numbers; best those first whose answers are likeliest to change.
        outcomes: answers for head sets and examples.
        full: evaluate every subset on every example, also those that cannot be the best any more.
        skipped: told of evaluations left out.
    """
    joint = joint_subsets(singles, p, k)
    return best(joint, len(joint) + p if full else 1, examples, outcomes, singles[:p], skipped)


def pool_of(singles: Sequence[Tally], p: int) -> list[Head]:
    """The heads of the `p` best single-head sets, in rank order."""
    return [head for found in singles[:p] for head in found.head_set]


def joint_subsets(singles: Sequence[Tally], p: int, k: int) -> list[HeadSet]:
    """The subsets of the pool of 2 to `k` heads."""
    return [HeadSet.of(heads) for size in range(2, k + 1) for heads in combinations(pool_of(singles, p), size)]


def n_subsets(p: int, k: int) -> int:
    """How many subsets of 1 to `k` heads a pool of `p` has: 175 for the paper's 10 and 3."""
    return sum(comb(p, size) for size in range(1, k + 1))


def best(
    head_sets: Sequence[HeadSet],
    count: int,
    examples: Sequence[int],
    outcomes: Outcomes,
    known: Sequence[Tally] = (),
    skipped: Skipped = lambda _: None,
) -> list[Tally]:
    """All sets, best first, of which the first `count` are evaluated on every example.

    Args:
        head_sets: the sets to evaluate.
        count: how many of the ranking must be exact.
        examples: the discovery examples' numbers; best those first whose answers are likeliest to change.
        outcomes: answers for head sets and examples.
        known: sets already evaluated in full, which take part in the ranking.
        skipped: told of evaluations left out.
    """
    answered = outcomes([INTACT], examples)[0]
    wrong, right = ([e for e, was in zip(examples, answered, strict=True) if was == side] for side in (False, True))
    race = _Race(wrong, right, head_sets, count, outcomes, list(known), skipped)
    for _ in range(race.n_wrong_chunks):
        race.step(race.active)
    while race.active:
        missing = count - len(race.done)  # of the best; while some are missing, no more than these are taken on
        race.step(race.first(min(BREADTH, missing) if missing > 0 else BREADTH) if race.selective else race.active)
    return sorted([*race.done, *race.dropped], key=lambda found: found.order)


class _Race:
    """Sets on their way through the examples: wrong ones first, in chunks, until they are through or dropped."""

    def __init__(
        self,
        wrong: list[int],
        right: list[int],
        head_sets: Sequence[HeadSet],
        count: int,
        outcomes: Outcomes,
        done: list[Tally],
        skipped: Skipped,
    ) -> None:
        self.n_wrong, self.n_right, self.n = len(wrong), len(right), len(wrong) + len(right)
        self.selective = count < len(head_sets) + len(done)  # where nothing can be dropped, there is no need to look
        size = CHUNK if self.selective else max(1, self.n)
        self.chunks = [part[i : i + size] for part in (wrong, right) for i in range(0, len(part), size)]
        self.n_chunks = len(self.chunks)
        self.n_wrong_chunks = -(-len(wrong) // size)
        self.count, self.outcomes, self.skipped = count, outcomes, skipped
        self.done, self.dropped = done, list[Tally]()
        self.right_answers = {head_set: list[int]() for head_set in head_sets}  # right answers in each chunk behind it

    @property
    def active(self) -> list[HeadSet]:
        """The sets still on their way."""
        return list(self.right_answers)

    def first(self, count: int) -> list[HeadSet]:
        """The `count` active sets that can still get furthest."""
        return sorted(self.right_answers, key=lambda head_set: self.bound(head_set).order)[:count]

    def bound(self, head_set: HeadSet) -> Tally:
        """The best that a set can still become."""
        seen = self.right_answers[head_set]
        sizes = [len(chunk) for chunk in self.chunks[: len(seen)]]
        split = self.n_wrong_chunks
        fixes = sum(seen[:split]) + self.n_wrong - sum(sizes[:split])
        harms = sum(sizes[split:]) - sum(seen[split:])
        return Tally(head_set, fixes, harms, self.n_right - harms + fixes, self.n, exact=len(seen) == self.n_chunks)

    def step(self, head_sets: Sequence[HeadSet]) -> None:
        """Take active sets through one more chunk, then see which are through and which are dropped."""
        together: dict[int, list[HeadSet]] = defaultdict(list)
        for head_set in head_sets:
            together[len(self.right_answers[head_set])].append(head_set)
        for at, now in together.items():
            for head_set, right in zip(now, self.outcomes(now, self.chunks[at]).sum(axis=1), strict=True):
                self.right_answers[head_set].append(int(right))
        self._settle()

    def _settle(self) -> None:
        """Move on the sets that are through, then drop those that cannot pass the last of the best `count`."""
        bounds = [self.bound(head_set) for head_set in self.right_answers]
        for tally in bounds:
            if tally.exact:
                self.done.append(tally)
                del self.right_answers[tally.head_set]
        if len(self.done) < self.count:
            return
        bar = sorted(tally.order for tally in self.done)[self.count - 1]
        for tally in bounds:
            if not tally.exact and tally.order > bar:
                self.dropped.append(tally)
                self.skipped(sum(map(len, self.chunks[len(self.right_answers.pop(tally.head_set)) :])))
