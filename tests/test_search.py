"""Algorithm 1 against brute force over random outcome tables, ties included."""

import random
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cel_core import search
from cel_core.heads import INTACT, HeadSet, all_heads


class Table:
    """A made-up outcome for every head set: few examples and levels, so that ties abound."""

    def __init__(self, seed: int, n_examples: int, levels: int) -> None:
        self.seed, self.n_examples, self.levels = seed, n_examples, levels
        self.asked: list[tuple[HeadSet, int]] = []

    def row(self, head_set: HeadSet) -> np.ndarray:
        key = [self.seed, *(value for head in head_set for value in (head.layer + 1, head.index + 1))]
        rng = np.random.default_rng(key)
        return rng.integers(0, self.levels + 1, self.n_examples) < rng.integers(0, self.levels + 2)

    def __call__(self, head_sets, examples) -> np.ndarray:
        self.asked += [(head_set, example) for head_set in head_sets for example in examples]
        return np.stack([self.row(head_set)[list(examples)] for head_set in head_sets])


def brute_force(table: Table, heads, p: int, k: int):
    """The definition, written down a second time with sets and sums."""
    intact = table.row(INTACT)

    def merit(head_set):
        now = table.row(head_set)
        accuracy_gain = sum(map(int, now)) - sum(map(int, intact))
        harms = sum(1 for was, is_ in zip(intact, now, strict=True) if was and not is_)
        return (-accuracy_gain, harms, -int(now.sum()), len(head_set), [(h.layer, h.index) for h in head_set])

    ranked = sorted((HeadSet.of([head]) for head in heads), key=merit)
    pool = [head_set.heads[0] for head_set in ranked[:p]]
    subsets = [HeadSet.of(c) for c in chain.from_iterable(combinations(pool, size) for size in range(1, k + 1))]
    return ranked, sorted(subsets, key=merit)


tables = st.builds(Table, st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3))


@settings(max_examples=150, deadline=None)
@given(tables, st.integers(1, 3), st.integers(2, 4), st.integers(1, 6), st.integers(1, 4))
def test_the_search_is_the_brute_force(table: Table, n_layers: int, n_heads: int, p: int, k: int):
    heads = all_heads(n_layers, n_heads)
    p = min(p, len(heads))
    k = min(k, p)
    found_singles = search.screen(heads, p, range(table.n_examples), table)
    found_subsets = search.join(found_singles, p, k, range(table.n_examples), table)
    singles, subsets = brute_force(table, heads, p, k)
    assert [one.head_set for one in found_singles] == singles
    assert [one.head_set for one in found_subsets] == subsets
    assert all(one.exact for one in found_singles + found_subsets)
    assert len(found_subsets) == search.n_subsets(p, k)


@settings(max_examples=300, deadline=None)
@given(
    tables,
    st.integers(1, 3),
    st.integers(2, 4),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 4),
    st.randoms(),
)
def test_the_bounded_search_finds_the_same_pool_in_the_same_order_and_freezes_the_same_set(
    table: Table, n_layers: int, n_heads: int, p: int, k: int, chunk: int, breadth: int, order: random.Random
):
    heads = all_heads(n_layers, n_heads)
    p = min(p, len(heads))
    k = min(k, p)
    skipped: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "CHUNK", chunk)
        patch.setattr(search, "BREADTH", breadth)
        examples = order.sample(range(table.n_examples), table.n_examples)
        found_singles = search.screen(heads, p, examples, table, full=False, skipped=skipped.append)
        found_subsets = search.join(found_singles, p, k, examples, table, full=False, skipped=skipped.append)
    singles, subsets = brute_force(table, heads, p, k)
    assert [one.head_set for one in found_singles[:p]] == singles[:p]
    assert all(one.exact for one in found_singles[:p])
    assert found_subsets[0].head_set == subsets[0]
    assert found_subsets[0].exact
    assert {one.head_set for one in found_singles} == set(singles)
    assert {one.head_set for one in found_subsets} == set(subsets)
    intact = table.row(INTACT)
    for one in found_singles + found_subsets:
        now = table.row(one.head_set)
        fixes, harms = int((now & ~intact).sum()), int((intact & ~now).sum())
        if one.exact:
            assert (one.fixes, one.harms, one.n_correct) == (fixes, harms, int(now.sum()))
        else:
            assert one.fixes >= fixes and one.harms <= harms and one.n_correct >= int(now.sum())
    everything = (len(heads) + search.n_subsets(p, k) - p) * table.n_examples
    without_intact = [case for case in table.asked if case[0] != INTACT]
    assert len(without_intact) == len(set(without_intact)) == everything - sum(skipped)


def test_the_paper_enumerates_175_subsets():
    assert search.n_subsets(10, 3) == 175
    table = Table(1, 5, 2)
    subsets = search.join(search.screen(all_heads(4, 4), 10, range(5), table), 10, 3, range(5), table)
    assert [sum(len(one.head_set) == size for one in subsets) for size in (1, 2, 3)] == [10, 45, 120]


def test_single_heads_are_not_evaluated_again_in_stage_two():
    table = Table(2, 4, 2)
    search.join(search.screen(all_heads(2, 3), 4, range(4), table), 4, 2, range(4), table)
    singles = [case for case in table.asked if len(case[0]) == 1]
    assert len(singles) == len(set(singles)) == 6 * 4


def test_gain_counts_fixes_and_harms():
    one = search.Tally(HeadSet.parse("L0H0"), fixes=12, harms=3, n_correct=70, n=100)
    assert (one.gain, one.accuracy) == pytest.approx((0.09, 0.70))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (("L3H3", 5, 0, 60), ("L0H0", 4, 0, 60)),  # gain
        (("L3H3", 5, 1, 60), ("L0H0", 6, 2, 60)),  # then fewer harms
        (("L3H3", 5, 1, 60), ("L0H0,L0H1", 5, 1, 60)),  # then fewer heads
        (("L2H10", 5, 1, 60), ("L10H2", 5, 1, 60)),  # then the heads as numbers
    ],
)
def test_the_order(better, worse):
    def tally(name, fixes, harms, n_correct):
        return search.Tally(HeadSet.parse(name), fixes, harms, n_correct, 100)

    assert tally(*better).order < tally(*worse).order


def test_heads_that_fix_nothing_are_not_run_on_what_the_intact_model_gets_right():
    class Rare(Table):
        """One head in ten fixes everything, the others nothing."""

        def row(self, head_set):
            if head_set == INTACT:
                return np.arange(self.n_examples) >= 40
            return np.ones(self.n_examples, bool) if head_set.heads[0].index == 0 else np.arange(self.n_examples) >= 40

    table = Rare(0, 400, 1)
    found = search.screen(all_heads(10, 10), 10, range(400), table, full=False)
    assert [one.head_set.heads[0].index for one in found[:10]] == [0] * 10
    asked = [case for case in table.asked if case[0] != INTACT]
    assert len(asked) == 10 * 400 + 90 * 40  # the others go no further than the wrong examples
    assert all(one.fixes == 0 and not one.exact for one in found[10:])
