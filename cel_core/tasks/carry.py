"""Two tasks that share a feature and conflict over it: the sum with carry, and the sum without.

The toy theory of `docs/method.md` in a trained transformer. Task A (`carry`) answers `27 + 45 =` with ` 72`, the ordinary sum;
task B (`no-carry`) answers the very same prompt with ` 62`, each column added for itself modulo 10. Both read the same
digits, so nearly all of the computation is shared; the carry is the conflicting feature: A wants it, B wants none of
it. A model trained on both at once (`data/demo_model`, half and half) settles in between, and a head that holds the
compromise can be removed to the gain of one task and, more dearly, the loss of the other.

1. Operands are 10 to 99. 40 % of the unordered pairs, chosen by a hash, are evaluation pairs: the demo model saw
   neither `27 + 45` nor `45 + 27` in training, marked or not, so accuracy is generalisation.
2. Rows are the evaluation pairs whose two answers differ, that is, where some column carries. A model answers `27 + 45`
   and `45 + 27` much alike, so each unordered pair is one row: two would count one finding twice, and could stand on
   both sides of a search. Another bit of the pair's hash chooses the order that is asked, either as often as the other
   (616 of the 1,258 pairs of different operands put the larger one first), and the same for every seed and both tasks.
3. Answers are written as people write them, most significant digit first. Ordinary sums have two or three digits;
   sums without carry always show both columns, so that 57 + 50 is ` 07`: a column's zero is a result, not padding.

Not covered: marked prompts (`c: 27 + 45 =`) as a task; they exist to train the model and to measure it.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator
from typing import ClassVar, Literal

from cel_core.tasks.base import Example, Row, Scoring, Sizes, Task

Reading = Literal["carry", "no-carry"]

OPERANDS = range(10, 100)
EVALUATION_PERCENT = 40
MARKS: dict[Reading, str] = {"carry": "c: ", "no-carry": "n: "}


def ordinary_sum(a: int, b: int) -> int:
    """Return the sum as taught in school, with carry."""
    return a + b


def carryless_sum(a: int, b: int) -> int:
    """Return the sum of two numbers below 100 with each column added modulo 10 and nothing carried."""
    return (a // 10 + b // 10) % 10 * 10 + (a % 10 + b % 10) % 10


def is_evaluation_pair(a: int, b: int) -> bool:
    """Tell whether the pair, in either order, is kept out of training for evaluation."""
    return int.from_bytes(_digest(a, b)[:8], "big") % 100 < EVALUATION_PERCENT


def asked_order(a: int, b: int) -> tuple[int, int]:
    """Return the pair in the one order that is asked, whichever order is given."""
    low, high = min(a, b), max(a, b)
    return (high, low) if _digest(a, b)[8] % 2 else (low, high)  # the first eight bytes chose the evaluation pairs


def _digest(a: int, b: int) -> bytes:
    """Return the hash of an unordered pair."""
    return hashlib.sha256(f"{min(a, b)}+{max(a, b)}".encode()).digest()


def prompt(a: int, b: int) -> str:
    """Return the unmarked prompt, which leaves the reading open."""
    return f"{a} + {b} ="


def completion(a: int, b: int, reading: Reading) -> str:
    """Return the answer under one reading, with the blank that comes before it."""
    return f" {ordinary_sum(a, b)}" if reading == "carry" else f" {carryless_sum(a, b):02d}"


def rows(reading: Reading, n: int, seed: int) -> list[dict[str, str]]:
    """Draw rows without replacement, each unordered pair at most once.

    One seed orders the pairs in the same way for both readings, and fewer rows are a beginning of more.

    Args:
        reading: which answer counts as right.
        n: how many rows, from 0 to `n_available(reading)`.
        seed: of the order.

    Returns:
        Rows such as `{"context": "27 + 45 =", "completion": " 72"}`.

    Raises:
        ValueError: if the reading is unknown or there are fewer than n rows.
    """
    available = n_available(reading)
    if not 0 <= n <= available:
        raise ValueError(f"{n} rows asked of the task {reading!r}, which has {available}: ask for 0 to {available}")
    pairs = list(_informative_pairs())
    random.Random(seed).shuffle(pairs)
    return [{"context": prompt(a, b), "completion": completion(a, b, reading)} for a, b in pairs[:n]]


def n_available(reading: Reading) -> int:
    """Return how many rows the task has."""
    if reading not in MARKS:
        raise ValueError(f"unknown reading {reading!r}: choose one of {', '.join(MARKS)}")
    return sum(1 for _ in _informative_pairs())


def _informative_pairs() -> Iterator[tuple[int, int]]:
    """Yield each unordered evaluation pair whose two readings differ, in the order that is asked."""
    for a, b in itertools.combinations_with_replacement(OPERANDS, 2):
        if is_evaluation_pair(a, b) and ordinary_sum(a, b) != carryless_sum(a, b):
            yield asked_order(a, b)


class Carry(Task):
    """Unmarked sums, right when answered with carry."""

    name = "carry"
    title = "Carry"
    about = "Sums that carry, such as 27 + 45. Right when the model writes the ordinary sum, 72."
    version = 2  # 1 asked both orders of a pair, as two rows
    scoring = Scoring.GREEDY
    paper_sizes = Sizes(600, 600)  # of the demo, from 1,283 pairs; the paper has no such task
    reading: ClassVar[Reading] = "carry"

    def examples(self, rows: list[Row]) -> list[Example]:
        """See `Task.examples`."""
        return [
            Example(self.name, row.filled("context"), (row.filled("completion"),), 0, row.text("completion").strip())
            for row in rows
        ]

    def generated_rows(self, seed: int) -> list[Row]:
        """All rows of the task, in the seed's order."""
        drawn = rows(self.reading, n_available(self.reading), seed)
        return [Row(fields, f"generated row {number}") for number, fields in enumerate(drawn, start=1)]


class NoCarry(Carry):
    """The same prompts, right when answered without carry."""

    name = "no-carry"
    title = "No carry"
    about = "Sums such as 27 + 45. Right when the model adds each column for itself and drops the carry: 62."
    reading = "no-carry"
