"""Made-up searches that fill a store through its public interface, so that pages are seen and tested without a model.

``python -m tests.pages.made_up STORE`` fills a store with one search of every state, and keeps one of them running.
"""

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from cel_core import search as algorithm
from cel_core.config import Protocol, SearchConfig
from cel_core.heads import INTACT, HeadSet, all_heads
from cel_core.records import Part, Status
from cel_core.store import Store
from cel_core.tasks import TASKS, Example
from cel_core.tasks.split import Split

ENVIRONMENT = {"python": "3.11.7", "platform": "made up", "torch": "2.13.0", "transformers": "5.24.0"}
HOSTILE = '<img src=x onerror="window.hacked=true"> & \'quotes\' "both"'


@dataclasses.dataclass(frozen=True)
class Story:
    """What a made-up search is about."""

    model: str = "made-up-48"
    task: str = "arithmetic"
    n_layers: int = 6
    n_heads: int = 8
    n_discovery: int = 40
    n_held_out: int = 40
    p: int = 5
    k: int = 3
    seed: int = 0
    good: float = 0.10  # chance that a wrong answer is mended by each of the three good heads
    noise: float = 0.05  # of a flip either way by any head
    full: bool = False  # whether every head is measured on every discovery example

    @property
    def config(self) -> SearchConfig:
        sizes = {"n_discovery": self.n_discovery, "n_held_out": self.n_held_out, "p": self.p, "k": self.k}
        return SearchConfig(self.model, self.task, **sizes, seed=self.seed, full_sweep=self.full)


def examples(story: Story) -> list[Example]:
    """Questions of the story's task, one of them hostile to a page."""
    rng = np.random.default_rng(story.seed)
    count = story.n_discovery + story.n_held_out
    if story.task == "boolq":
        passages = [HOSTILE if i % 7 == 3 else f"Town number {i} lies on a river." for i in range(count)]
        return [
            Example("boolq", f"{text}\nQuestion: has town {i} a bridge?\nAnswer:", (" no", " yes"), int(rng.random() < 0.6), "")
            for i, text in enumerate(passages)
        ]
    found = []
    for i in range(count):
        a, b = (int(x) for x in rng.integers(10, 10_000, 2))
        kind, word, answer = ("4ds", "minus", a - b) if i % 2 else ("4da", "plus", a + b)
        question = f"What is {a} {word} {b}?" if i % 9 else f"What is {a} {word} {b}? {HOSTILE}"
        found.append(Example(story.task, f"Question: {question}\nAnswer:", (f" {answer}",), 0, str(answer), kind))
    return found


class Oracle:
    """Answers of a model that does not exist: outcomes by a seeded draw, where three heads do harm to the task."""

    def __init__(self, story: Story, drawn: Sequence[Example]) -> None:
        self.story, self.examples = story, list(drawn)
        rng = np.random.default_rng(story.seed + 1)
        heads = all_heads(story.n_layers, story.n_heads)
        self.good = [heads[int(i)] for i in rng.choice(len(heads), 3, replace=False)]
        self.bad = [heads[int(i)] for i in rng.choice(len(heads), max(2, len(heads) // 6), replace=False)]
        self.intact = rng.random(len(self.examples)) < 0.62
        self.number = {example.key: i for i, example in enumerate(self.examples)}

    def correct(self, head_set: HeadSet, i: int) -> bool:
        rng = np.random.default_rng([self.story.seed, i, *(1000 * h.layer + h.index + 1 for h in head_set)])
        right = bool(self.intact[i])
        for head in head_set:
            roll = rng.random()
            if head in self.good:
                right = right if right else roll < self.story.good
            elif head in self.bad:
                right = right and roll > 0.12
            elif roll < self.story.noise:
                right = not right
        return right

    def outcomes(self, head_sets: Sequence[HeadSet], chosen: Sequence[Example]) -> pd.DataFrame:
        """The frame that `cel_core.evaluation` would make."""
        rows = []
        for head_set in head_sets:
            for example in chosen:
                right = self.correct(head_set, self.number[example.key])
                rng = np.random.default_rng([7, self.number[example.key], len(head_set), right])
                margin = float(abs(rng.normal(0, 1.2)) + 0.01) * (1 if right else -1)
                if len(example.continuations) > 1:
                    answer, logprobs = str(example.gold if right else 1 - example.gold), [-2.0, -2.0]
                    logprobs[example.gold] += margin
                else:
                    answer = example.answer if right else str(int(example.answer) + 10 * (1 + len(head_set)))
                    logprobs = [-1.0 + min(0.0, margin)]
                rows.append((str(head_set), example.key, right, answer, margin, logprobs, ""))
        columns = ["head_set", "example", "correct", "answer", "margin_nats", "logprobs_nats", "detail"]
        return pd.DataFrame(rows, columns=columns)


class MadeUpSearch:
    """A search that goes through Algorithm 1 on an oracle, in steps, writing to a store as the real one does."""

    def __init__(self, store: Store, story: Story) -> None:
        self.store, self.story = store, story
        drawn = examples(story)
        self.split = Split(drawn[: story.n_discovery], drawn[story.n_discovery :], [])
        self.oracle = Oracle(story, drawn)
        self.id = store.create_search(story.config, ENVIRONMENT)
        self.heads = all_heads(story.n_layers, story.n_heads)

    def plan(self) -> "MadeUpSearch":
        story = self.story
        model = {
            "n_layers": story.n_layers,
            "n_heads": story.n_heads,
            "n_kv_heads": max(1, story.n_heads // 2),
            "spec": story.model,
            "family": "llama",
            "dtype": "float32",
            "device": "cpu",
        }
        task = TASKS[story.task]
        protocol = Protocol(f"{story}", "float32", story.task, task.version, task.scoring)
        self.store.plan(self.id, protocol, model, self.split)
        return self

    def screening(self, upto: int | None = None, step: int = 8) -> Iterator[int]:
        """Stage 1, `step` heads at a time."""
        total = (len(self.heads) + 1) * self.story.n_discovery
        sets = [INTACT, *(HeadSet((head,)) for head in self.heads)][:upto]
        for first in range(0, len(sets), step):
            frame = self.oracle.outcomes(sets[first : first + step], self.split.discovery)
            self.store.add_outcomes(self.id, Part.DISCOVERY, frame)
            done = min(first + step, len(sets)) * self.story.n_discovery
            self.store.progress(self.id, "stage 1 of 2", done, total, 0.05 * done)
            yield done

    def _correct(self, head_sets: Sequence[HeadSet], numbers: Sequence[int]) -> np.ndarray:
        chosen = [self.split.discovery[number] for number in numbers]
        frame = self.oracle.outcomes(head_sets, chosen)
        self.store.add_outcomes(self.id, Part.DISCOVERY, frame)
        return frame["correct"].to_numpy(bool).reshape(len(head_sets), len(numbers))

    def finish(self) -> str:
        """Both stages, the freeze and the held-out comparison."""
        story, n = self.story, self.story.n_discovery
        singles = algorithm.screen(self.heads, story.p, range(n), self._correct, story.full)
        self.store.save_ranking(self.id, 1, singles)
        subsets = algorithm.join(singles, story.p, story.k, range(n), self._correct, story.full)
        self.store.save_ranking(self.id, 2, subsets)
        frozen = subsets[0]
        self.store.freeze(self.id, frozen.head_set, frozen.gain)
        frame = self.oracle.outcomes([INTACT, frozen.head_set], self.split.held_out)
        self.store.add_outcomes(self.id, Part.HELD_OUT, frame)
        self.store.save_held_out(self.id)
        self.store.progress(self.id, "held-out", 2 * story.n_held_out, 2 * story.n_held_out, 61.5)
        self.store.end(self.id, Status.DONE, 61.5)
        return self.id


def done(store: Store, story: Story | None = None) -> str:
    """A search that found something."""
    return MadeUpSearch(store, story or Story()).plan().finish()


def without_benefit(store: Store) -> str:
    """A finished search whose pool held no beneficial set: every head does harm."""
    story = Story(model="made-up-none", seed=3, good=0.0, noise=0.0, n_layers=3, n_heads=4, p=3, k=2)
    search = MadeUpSearch(store, story).plan()
    search.oracle.bad = search.heads
    search.oracle.good = []
    return search.finish()


def halfway(store: Store, story: Story | None = None, upto: int = 25) -> MadeUpSearch:
    """A search in the middle of stage 1."""
    search = MadeUpSearch(store, story or Story(seed=5, model="made-up-running")).plan()
    list(search.screening(upto))
    return search


def stopped(store: Store) -> str:
    """A search its user stopped in stage 1."""
    search = halfway(store, Story(seed=6, model="made-up-stopped")).id
    store.end(search, Status.STOPPED, 12.5)
    return search


def failed(store: Store) -> str:
    """A search that failed while loading."""
    search = MadeUpSearch(store, Story(seed=7, model="no/such-model")).id
    store.end(
        search,
        Status.FAILED,
        0.4,
        "model 'no/such-model' is neither a folder nor on the hub: check the name, or give a local folder",
    )
    return search


def every_state(store: Store) -> dict[str, str]:
    """One search of each state; the running one belongs to this process, and so runs as long as it does."""
    return {
        "large": done(
            store,
            Story(model="HuggingFaceTB/SmolLM3-3B", n_layers=36, n_heads=16, n_discovery=80, n_held_out=200, p=10, seed=8),
        ),
        "failed": failed(store),
        "none": without_benefit(store),
        "stopped": stopped(store),
        "boolq": done(store, Story(model="made-up-boolq", task="boolq", n_layers=28, n_heads=24, seed=9)),
        "done": done(store),
        "loading": MadeUpSearch(store, Story(seed=11, model="made-up-loading")).id,
        "running": halfway(store).id,
    }


if __name__ == "__main__":
    filled = Store(Path(sys.argv[1]))
    for name, search_id in every_state(filled).items():
        print(f"{name:8} {search_id}", flush=True)
    slow = MadeUpSearch(filled, Story(seed=12, model="made-up-slow", n_layers=12, n_heads=12, p=6)).plan()
    print(f"slow     {slow.id}", flush=True)
    for _ in slow.screening(step=2):
        time.sleep(2)
    slow.finish()
    time.sleep(3600)
