"""Algorithm 1 of "Can Capability Enhancement be Localized?" (arXiv 2610.21294, section 3.2).

1. Screen every head alone on the discovery examples; the `p` best form the pool.
2. Enumerate every subset of the pool of 1 to `k` heads; sets of one head reuse stage 1. The best is frozen.

The order, in both stages: higher gain, then fewer harms, then higher accuracy, then fewer heads, then the heads as numbers
(layer, index). The held-out comparison is not here: this module sees discovery examples only, by number, and asks for their
outcomes through a callable. It knows no model, no tensor and no file.

Both stages ask which sets are the best `count` of many (`best`), and most sets need not be run on every example to know that
they are not among them. Fixes come only from examples the intact model gets wrong. So those are evaluated first; a set's gain
is at most its fixes so far, plus the wrong examples still to come, less its harms so far; and once `count` sets are known in
full, whatever cannot pass the last of them is dropped. The best sets, their order and all ties stay exactly those of the full
sweep; a dropped set keeps its bounds.
"""

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
    heads: Sequence[Head], p: int, n_examples: int, outcomes: Outcomes, full: bool = True, skipped: Skipped = lambda _: None
) -> list[Tally]:
    """Stage 1: every head alone, best first; the first `p` are the pool, in order and in full.

    Args:
        heads: the heads to screen.
        p: size of the pool.
        n_examples: discovery examples, numbered from 0.
        outcomes: answers for head sets and examples.
        full: evaluate every head on every example, also those that cannot reach the pool any more.
        skipped: told of evaluations left out.
    """
    singles = [HeadSet((head,)) for head in heads]
    return best(singles, len(singles) if full else p, n_examples, outcomes, skipped=skipped)


def join(
    singles: Sequence[Tally],
    p: int,
    k: int,
    n_examples: int,
    outcomes: Outcomes,
    full: bool = True,
    skipped: Skipped = lambda _: None,
) -> list[Tally]:
    """Stage 2: every subset of the `p` best heads of 1 to `k` heads, best first; the first is the set to freeze.

    Args:
        singles: the ranking of stage 1.
        p: size of the pool.
        k: heads in a subset, at most.
        n_examples: discovery examples, numbered from 0.
        outcomes: answers for head sets and examples.
        full: evaluate every subset on every example, also those that cannot be the best any more.
        skipped: told of evaluations left out.
    """
    pool = pool_of(singles, p)
    joint = [HeadSet.of(heads) for size in range(2, k + 1) for heads in combinations(pool, size)]
    return best(joint, len(joint) + p if full else 1, n_examples, outcomes, singles[:p], skipped)


def pool_of(singles: Sequence[Tally], p: int) -> list[Head]:
    """The heads of the `p` best single-head sets, in rank order."""
    return [head for found in singles[:p] for head in found.head_set]


def n_subsets(p: int, k: int) -> int:
    """How many subsets of 1 to `k` heads a pool of `p` has: 175 for the paper's 10 and 3."""
    return sum(comb(p, size) for size in range(1, k + 1))


def best(
    head_sets: Sequence[HeadSet],
    count: int,
    n_examples: int,
    outcomes: Outcomes,
    known: Sequence[Tally] = (),
    skipped: Skipped = lambda _: None,
) -> list[Tally]:
    """All sets, best first, of which the first `count` are evaluated on every example.

    Args:
        head_sets: the sets to evaluate.
        count: how many of the ranking must be exact.
        n_examples: discovery examples, numbered from 0.
        outcomes: answers for head sets and examples.
        known: sets already evaluated in full, which take part in the ranking.
        skipped: told of evaluations left out.
    """
    intact = outcomes([INTACT], range(n_examples))[0]
    race = _Race(intact, head_sets, count, outcomes, list(known), skipped)
    if len(race.done) < count < len(head_sets):
        race.run(race.active, 1)
        race.run(race.first(count), race.n_chunks)  # the most promising, to the end: now there is a bar to pass
    for n_chunks in range(1, race.n_wrong_chunks + 1):
        race.run(race.active, n_chunks)
    while race.active:
        race.run(race.first(max(count, CHUNK)), race.n_chunks)
    return sorted([*race.done, *race.dropped], key=lambda found: found.order)


class _Race:
    """Sets on their way through the examples: wrong ones first, in chunks, until they are through or dropped."""

    def __init__(
        self,
        intact: np.ndarray,
        head_sets: Sequence[HeadSet],
        count: int,
        outcomes: Outcomes,
        done: list[Tally],
        skipped: Skipped,
    ) -> None:
        wrong, right = np.flatnonzero(~intact).tolist(), np.flatnonzero(intact).tolist()
        size = CHUNK if count < len(head_sets) + len(done) else len(intact)  # where nothing can be dropped, no need to look
        self.chunks = [part[i : i + size] for part in (wrong, right) for i in range(0, len(part), size)]
        self.n_chunks = len(self.chunks)
        self.n_wrong_chunks = -(-len(wrong) // size)
        self.n_wrong, self.n_right, self.n = len(wrong), len(right), len(intact)
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

    def run(self, head_sets: Sequence[HeadSet], n_chunks: int) -> None:
        """Take sets through the first `n_chunks` chunks, dropping those that fall behind on the way."""
        going = [head_set for head_set in head_sets if len(self.right_answers[head_set]) < n_chunks]
        while going:
            at = min(len(self.right_answers[head_set]) for head_set in going)
            now = [head_set for head_set in going if len(self.right_answers[head_set]) == at]
            for head_set, right in zip(now, self.outcomes(now, self.chunks[at]).sum(axis=1), strict=True):
                self.right_answers[head_set].append(int(right))
            self._settle()
            going = [one for one in going if one in self.right_answers and len(self.right_answers[one]) < n_chunks]

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
