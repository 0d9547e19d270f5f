r"""Arithmetic (Brown et al., 2020): ten kinds of sums in words, right when the answer is what the model itself would write.

Context ``Question: What is 98 plus 45?\nAnswer:``, continuation `` 143``, scored greedily. Rows of the raw GPT-3 form
(``Q:`` and ``A:``, double line ends) are brought to the form above. Rows can be generated for all kinds from a seed, drawn as
the originals were: two-digit operands uniform in [0, 100), three- to five-digit ones in [0, 10^digits), differences of either
sign, and three one-digit numbers from 1 to 9 under two operators with the first two in parentheses.
"""

import random
import re
from pathlib import Path

from cel_core.tasks.base import Example, HubSource, Row, Scoring, Sizes, Task

KINDS = {
    "1dc": "single_digit_three_ops",
    "2da": "two_digit_addition",
    "2dm": "two_digit_multiplication",
    "2ds": "two_digit_subtraction",
    "3da": "three_digit_addition",
    "3ds": "three_digit_subtraction",
    "4da": "four_digit_addition",
    "4ds": "four_digit_subtraction",
    "5da": "five_digit_addition",
    "5ds": "five_digit_subtraction",
}
ROWS_PER_KIND = 2000  # as many as the official validation split has
_KIND_OF_FILE = {name: kind for kind, name in KINDS.items()} | {kind: kind for kind in KINDS}
_OPERATIONS = {
    "a": ("plus", lambda a, b: a + b),
    "s": ("minus", lambda a, b: a - b),
    "m": ("times", lambda a, b: a * b),
}


class Arithmetic(Task):
    """Ten kinds of arithmetic; the kind comes from the file a row stood in."""

    name = "arithmetic"
    title = "Arithmetic"
    about = "Sums in words. Right when the gold answer is what the model itself would write."
    scoring = Scoring.GREEDY
    paper_sizes = Sizes(2000, 1000)
    hub = HubSource(
        "EleutherAI/arithmetic",
        data_files=tuple(f"hf://datasets/EleutherAI/arithmetic/data/{name}.jsonl" for name in KINDS.values()),
    )

    def examples(self, rows: list[Row]) -> list[Example]:
        """See `Task.examples`."""
        return [
            Example(
                task=self.name,
                context=normalised(row.filled("context")),
                continuations=(row.filled("completion"),),
                gold=0,
                answer=row.text("completion").strip(),
                kind=str(row.fields.get("kind") or kind_of(row.where)),
            )
            for row in rows
        ]

    def generated_rows(self, seed: int) -> list[Row]:
        """2,000 rows of each kind."""
        rng = random.Random(seed)
        return [_generate(kind, index, rng) for kind in KINDS for index in range(ROWS_PER_KIND)]


def normalised(context: str) -> str:
    """A context in the form lm-evaluation-harness gives it, whichever of the two published forms it came in."""
    return context.strip().replace("\n\n", "\n").replace("Q:", "Question:").replace("A:", "Answer:")


def kind_of(where: str) -> str:
    """The kind of the rows in a file, by its name; "" where the name tells none."""
    return _KIND_OF_FILE.get(re.split(r"[.:]", Path(where).name)[0], "")


def _generate(kind: str, index: int, rng: random.Random) -> Row:
    if kind == "1dc":
        a, b, c = (rng.randint(1, 9) for _ in range(3))
        first, second = (rng.choice("+-*") for _ in range(2))
        question = f"({a} {first} {b}) {second} {c}"
        answer = _apply(second, _apply(first, a, b), c)
    else:
        word, operation = _OPERATIONS[kind[2]]
        a, b = (rng.randrange(10 ** int(kind[0])) for _ in range(2))
        question, answer = f"{a} {word} {b}", operation(a, b)
    fields = {"context": f"Question: What is {question}?\nAnswer:", "completion": f" {answer}", "kind": kind}
    return Row(fields, f"generated {kind} row {index + 1}")


def _apply(sign: str, a: int, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b
