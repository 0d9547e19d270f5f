"""HellaSwag (Zellers et al., 2019): which of four endings goes on from a description.

The context is ``pre(activity_label + ": " + ctx_a + " " + capitalize(ctx_b))``, a choice ``pre(ending)``, scored after a
blank. `pre` takes out what WikiHow left in the text, in lm-evaluation-harness's order of steps. The gold ending is right when
its log-probability per character of the choice (``acc_norm``) is the largest; ``acc`` compares the log-probabilities.
"""

import re

from cel_core.errors import DataError
from cel_core.tasks.base import Example, HubSource, Row, Scoring, Sizes, Task


class HellaSwag(Task):
    """Commonsense sentence completion."""

    name = "hellaswag"
    title = "HellaSwag"
    about = "Which of four endings goes on with a scene. Right when the gold one is the likeliest, per character."
    scoring = Scoring.CHOICE_PER_CHARACTER
    paper_sizes = Sizes(2000, 10042)
    hub = HubSource("Rowan/hellaswag", None, ("train", "validation"))

    def examples(self, rows: list[Row]) -> list[Example]:
        """See `Task.examples`; the label may be an integer or a text."""
        found = []
        for row in rows:
            label = str(row.value("label")).strip()
            if label not in ("0", "1", "2", "3"):
                raise DataError(f"{row.where}: label '{label}' is not 0 to 3: correct the row, or leave out unlabelled rows")
            query = pre(f"{row.text('activity_label')}: {row.text('ctx_a')} {row.text('ctx_b').capitalize()}")
            endings = [pre(ending) for ending in row.texts("endings", 4)]
            choices = tuple(f" {ending}" for ending in endings)
            found.append(Example(self.name, query, choices, int(label), endings[int(label)], split=row.split))
        return found


def pre(text: str) -> str:
    """Clean a text: strip it, turn `` [title]`` into ``. ``, drop every ``[...]``, make double blanks single (one pass)."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")
