r"""BoolQ (Clark et al., 2019): a passage, a yes/no question, and the likelier of the two words.

Context ``{passage}\nQuestion: {question}?\nAnswer:``, choices `` no`` and `` yes``; the larger log-probability wins.
"""

from typing import Any

from cel_core.errors import DataError
from cel_core.tasks.base import Example, HubSource, Row, Scoring, Sizes, Task

_LABELS = {"true": 1, "yes": 1, "1": 1, "false": 0, "no": 0, "0": 0}


class BoolQ(Task):
    """Reading comprehension with yes or no."""

    name = "boolq"
    title = "BoolQ"
    about = "A question about a passage. Right when the gold answer, yes or no, is the likelier one."
    scoring = Scoring.CHOICE
    paper_sizes = Sizes(2000, 3270)
    hub = HubSource("aps/super_glue", "boolq", ("train", "validation"))

    def examples(self, rows: list[Row]) -> list[Example]:
        """See `Task.examples`; the label may be a bool, 0 or 1, or a text such as ``true``."""
        found = []
        for row in rows:
            gold = _label(row.value("label", "answer"), row.where)
            context = f"{row.text('passage')}\nQuestion: {row.text('question')}?\nAnswer:"
            found.append(Example(self.name, context, (" no", " yes"), gold, ("no", "yes")[gold], split=row.split))
        return found


def _label(value: Any, where: str) -> int:
    label = _LABELS.get(str(value).strip().lower())
    if label is None:
        raise DataError(f"{where}: label {value!r} is neither true nor false: correct the row, or leave out unlabelled rows")
    return label
