"""Fill a store with made-up outcomes, as many as a well-used dashboard holds, for `scripts.bench_ui`.

1. One search of the size of the paper's largest: 28 x 24 heads on HellaSwag's 2,000 discovery and 10,042 held-out examples.
   Every head and every subset of the best ten is known on discovery, a dozen sets on held-out beside the frozen one.
2. 49 searches of 6 x 8 heads on Arithmetic, one of them stopped and one failed.

All of it goes through the store's own methods. Texts are random words of about the benchmarks' lengths, answers are seeded
draws; nothing here says anything about a model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from cel_core.config import Protocol, SearchConfig
from cel_core.heads import INTACT, Head, HeadSet, all_heads
from cel_core.outcomes import Outcomes, as_table
from cel_core.records import Part, Status
from cel_core.search import Tally, joint_subsets
from cel_core.store import Store
from cel_core.tasks import Example, find_task
from cel_core.tasks.split import Split

N_SMALL = 49
N_WALKED = 7  # heads that `walk` switches
SETS_AT_ONCE = 48  # head sets written in one transaction
WORDS = "the a man woman is are then stands holds water ball over under with and starts to talk while people watch".split()
ENVIRONMENT = {"python": "3.11", "platform": "made up", "torch": "none", "transformers": "none"}


@dataclass(frozen=True)
class Size:
    """How large a made-up search is."""

    model: str
    task: str
    n_layers: int
    n_heads: int
    n_discovery: int
    n_held_out: int
    seed: int = 0
    p: int = 10
    k: int = 3

    @property
    def config(self) -> SearchConfig:
        """The search as a user would have asked for it."""
        return SearchConfig(
            self.model,
            self.task,
            n_discovery=self.n_discovery,
            n_held_out=self.n_held_out,
            p=self.p,
            k=self.k,
            seed=self.seed,
            full_sweep=True,
        )


LARGE = Size("made-up/28x24", "hellaswag", 28, 24, 2000, 10_042)


def fill(path: Path, large: Size = LARGE, n_small: int = N_SMALL) -> None:
    """Fill a new store, with 50 searches and two million outcomes unless told otherwise.

    Args:
        path: the file, in a folder that exists.
        large: the one large search, the newest; it has more heads than `walk` switches.
        n_small: how many small ones.
    """
    store = Store(path)
    with store.together():
        for number in range(n_small):
            search = _Search(store, Size(f"made-up/small-{number}", "arithmetic", 6, 8, 40, 80, seed=number, p=6, k=2))
            search.run()
            if number == 3:
                store.end(search.id, Status.STOPPED, 12.0)
            if number == 5:
                store.end(search.id, Status.FAILED, 3.0, "memory ran out: give a smaller model, or another device")
        search = _Search(store, large)
        search.run()
        search.look_at(head_set for _, head_set in walk(store, search.id))


def walk(store: Store, search: str) -> list[tuple[Head, HeadSet]]:
    """Heads to switch one after the other, from none off to none off, through sets stored on both sides of the large search.

    Returns:
        The head to switch, and the set that is then off.
    """
    best = [t.head_set.heads[0] for t in store.ranking(search, 1)[:N_WALKED]]
    off, found = HeadSet(), []
    for head in [best[0], *(head for pair in pairwise(best) for head in reversed(pair)), best[-1]]:
        off = HeadSet.of(set(off) ^ {head})
        found.append((head, off))
    return found


class _Search:
    """One search, whose answers are drawn rather than computed."""

    def __init__(self, store: Store, size: Size) -> None:
        self.store, self.size = store, size
        self.rng = np.random.default_rng([size.seed, size.n_held_out])
        n = size.n_discovery
        made = [self._example(number) for number in range(n + size.n_held_out)]
        self.sides = {Part.DISCOVERY: made[:n], Part.HELD_OUT: made[n:]}
        self.intact = {part: self.rng.random(len(side)) < 0.6 for part, side in self.sides.items()}
        self.id = store.create_search(size.config, ENVIRONMENT)
        task = find_task(size.task)
        shape = {"n_layers": size.n_layers, "n_heads": size.n_heads, "n_kv_heads": size.n_heads // 2}
        model = shape | {"spec": size.model, "family": "llama", "dtype": "float32", "device": "cpu"}
        protocol = Protocol(size.model, "float32", size.task, task.version, task.scoring)
        store.plan(self.id, protocol, model, Split(self.sides[Part.DISCOVERY], self.sides[Part.HELD_OUT], []))

    def run(self) -> None:
        """Both stages, the freeze and the held-out comparison."""
        size = self.size
        heads = [HeadSet((head,)) for head in all_heads(size.n_layers, size.n_heads)]
        self._keep(Part.DISCOVERY, [INTACT])
        singles = sorted(self._keep(Part.DISCOVERY, heads), key=lambda tally: tally.order)
        self.store.save_ranking(self.id, 1, singles)
        joint = joint_subsets(singles, size.p, size.k)
        subsets = sorted([*singles[: size.p], *self._keep(Part.DISCOVERY, joint)], key=lambda tally: tally.order)
        self.store.save_ranking(self.id, 2, subsets)
        frozen = subsets[0]
        self.store.freeze(self.id, frozen.head_set, frozen.gain)
        self._keep(Part.HELD_OUT, [INTACT, frozen.head_set])
        self.store.save_held_out(self.id)
        self.store.progress(self.id, "held-out", 2 * size.n_held_out, 2 * size.n_held_out, 61.5)
        self.store.end(self.id, Status.DONE, 61.5)

    def look_at(self, head_sets: Iterable[HeadSet]) -> None:
        """Keep held-out outcomes of more sets, as if somebody had switched heads on Live."""
        self._keep(Part.HELD_OUT, list(dict.fromkeys(head_sets)))

    def _keep(self, part: Part, head_sets: Sequence[HeadSet]) -> list[Tally]:
        """Draw and keep outcomes of these sets on one side; how they did there."""
        tallies = []
        for first in range(0, len(head_sets), SETS_AT_ONCE):
            chunk = head_sets[first : first + SETS_AT_ONCE]
            correct = np.stack([self._correct(part, head_set) for head_set in chunk])
            self.store.add_outcomes(self.id, part, as_table([self._outcomes(part, chunk, correct)]))
            intact = self.intact[part]
            tallies += [
                Tally(s, int((~intact & row).sum()), int((intact & ~row).sum()), int(row.sum()), len(row))
                for s, row in zip(chunk, correct, strict=True)
            ]
        return tallies

    def _correct(self, part: Part, head_set: HeadSet) -> np.ndarray:
        """Whether each example is answered right, ``(n_examples,)``: the more heads are off, the more answers change."""
        intact = self.intact[part]
        changes = self.rng.random(len(intact)) < 0.04 * len(head_set)
        return intact ^ changes

    def _outcomes(self, part: Part, head_sets: Sequence[HeadSet], correct: np.ndarray) -> Outcomes:
        examples = self.sides[part]
        n_choices = len(examples[0].continuations)
        margins = np.where(correct, 1, -1) * (0.01 + np.abs(self.rng.normal(0, 1.2, correct.shape)))
        if n_choices > 1:
            gold = np.array([example.gold for example in examples])
            answers = np.where(correct, gold, (gold + 1) % n_choices).astype(str).astype(object)
        else:
            answers = np.where(correct, [example.answer for example in examples], "0").astype(object)
        return Outcomes(
            list(head_sets),
            [example.key for example in examples],
            correct,
            answers,
            margins,
            self.rng.normal(-20, 4, (*correct.shape, n_choices)),
            np.full(correct.shape, "", object),
        )

    def _example(self, number: int) -> Example:
        rng, task = self.rng, self.size.task
        if task == "arithmetic":
            a, b = (int(x) for x in rng.integers(100, 1000, 2))
            return Example(task, f"Question {number}: What is {a} plus {b}?\nAnswer:", (f" {a + b}",), 0, str(a + b), "3da")
        gold, ways = int(rng.integers(4)), tuple(f" {self._text(14)}" for _ in range(4))
        return Example(task, f"Number {number}: {self._text(40)}", ways, gold, ways[gold].strip())

    def _text(self, n_words: int) -> str:
        return " ".join(WORDS[int(i)] for i in self.rng.integers(0, len(WORDS), n_words)).capitalize() + "."
