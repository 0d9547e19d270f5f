"""Examples beside each other, intact and ablated: what each side answered, and tables of them.

What is shown comes from models and data sets, so every text goes through `pages.markup`.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cel_core.records import SearchRecord
from cel_core.tasks import TASKS, Scoring
from pages import formats
from pages.markup import Column, Markup, Row, join, table, tag

MAX_ROWS = 400  # flips drawn; the CSV has all
PROMPT_CHARACTERS = 160
CUT_TIP = "… ends an answer where it leaves the gold one: scoring reads no further."
MARGIN_TIP = "How far the gold answer leads the best other one, before and after. Below 0 the model answers something else."
COLUMNS = (
    Column("Flip", tip="Fix: wrong before, right after. Harm: right before, wrong after."),
    Column("Kind"),
    Column("Prompt", "cut"),
    Column("Gold", "n", "The right answer."),
    Column("Intact", "n", f"The answer of the whole model. {CUT_TIP}"),
    Column("Ablated", "n", f"The answer without the heads. {CUT_TIP}"),
)


class Shares(NamedTuple):
    """How often one answer is given, as fractions."""

    answer: str
    gold: float
    intact: float
    ablated: float


def compared(paired: pd.DataFrame) -> pd.DataFrame:
    """All examples; ``flip`` says fix, harm or same."""
    found = paired.copy(deep=False)
    intact, ablated = found["intact_correct"].to_numpy(bool), found["ablated_correct"].to_numpy(bool)
    found["flip"] = np.select([~intact & ablated, intact & ~ablated], ["fix", "harm"], "same")
    return found


def flips(paired: pd.DataFrame) -> pd.DataFrame:
    """The examples whose correctness differs; ``flip`` says fix or harm."""
    found = compared(paired)
    return found[found["flip"] != "same"]


def matching(found: pd.DataFrame, words: str) -> pd.DataFrame:
    """The examples whose prompt, kind or answers, as they are shown, hold all of the words."""
    if not len(found):
        return found
    said = [
        " ".join([e.kind, e.context, gold_text(e), said_text(e, "intact"), said_text(e, "ablated")]).lower()
        for e in found.itertuples()
    ]
    return found[[all(word in text for word in words.lower().split()) for text in said]]


def answer_text(example: Any, answer: str) -> str:
    """An outcome's answer as a reader sees it: for choices the choice itself, not its number."""
    choices = list(example.continuations)
    if len(choices) > 1 and answer.isdigit() and int(answer) < len(choices):
        return choices[int(answer)].strip()
    return answer.strip()


def said_text(example: Any, side: str) -> str:
    """What a side (intact, ablated) answered; a wrong one in words is known up to where it leaves the gold answer (…)."""
    answer = answer_text(example, getattr(example, f"{side}_answer"))
    return f"{answer}…" if is_cut(example, side) else answer


def is_cut(example: Any, side: str) -> bool:
    """Whether scoring read only part of a side's answer, up to where it left the gold one; an end mark (``<|…|>``) ends it."""
    greedy = len(example.continuations) == 1
    return greedy and not getattr(example, f"{side}_correct") and not getattr(example, f"{side}_answer").endswith(">")


def gold_text(example: Any) -> str:
    """The gold answer as a reader sees it."""
    choices = list(example.continuations)
    return choices[example.gold].strip() if len(choices) > 1 else example.answer.strip()


def flips_table(record: SearchRecord, found: pd.DataFrame, name: str, selected: str = "") -> Markup:
    """The flips as rows that can be picked."""
    drawn = example_table(record, found.head(MAX_ROWS), name, selected, "No answer changed.")
    if len(found) <= MAX_ROWS:
        return drawn
    return join([drawn, tag("p", f"The first {MAX_ROWS} of {formats.count(len(found))}; the CSV has all.", css="sub empty")])


def margin_unit(record: SearchRecord) -> str:
    """What a search's margins are measured in."""
    scoring = TASKS[record.config.task].scoring if record.config.task in TASKS else None
    return "nats per character" if scoring == Scoring.CHOICE_PER_CHARACTER else "nats"


def example_table(
    record: SearchRecord, found: pd.DataFrame, name: str, selected: str, empty: str, without: Collection[str] = ()
) -> Markup:
    """Compared examples as rows that can be picked; the column of kinds is left out where there is one kind only."""
    columns = (*COLUMNS, Column(f"Margin, {margin_unit(record)}", "n", MARGIN_TIP))
    left_out = {*without, *(() if found["kind"].nunique() > 1 else ("Kind",))}
    chosen = [i for i, column in enumerate(columns) if column.title not in left_out]
    rows = []
    for example in found.itertuples():
        cells = _cells(example)
        rows.append(Row([cells[i] for i in chosen], key=example.key, group=example.flip, selected=example.key == selected))
    return table([columns[i] for i in chosen], rows, name, empty)


def _cells(example: Any) -> list[object]:
    """One compared example as the cells of `COLUMNS` and its margins."""
    margin = f"{formats.nats(example.intact_margin_nats)} → {formats.nats(example.ablated_margin_nats)}"
    return [
        tag("span", example.flip, css={"fix": "gain", "harm": "harm"}.get(example.flip, "")),
        example.kind,
        short(_last_question(example.context), PROMPT_CHARACTERS),
        short(gold_text(example), 32),
        short(said_text(example, "intact"), 32),
        short(said_text(example, "ablated"), 32),
        margin if not np.isnan(example.intact_margin_nats) else "–",
    ]


def answer_balance(paired: pd.DataFrame) -> list[Shares]:
    """How often each choice is the gold answer, and the intact and the ablated model's; empty for tasks without choices."""
    if not len(paired) or len(paired["continuations"].iloc[0]) < 2:
        return []
    labels = choice_labels(paired)
    columns = [paired["gold"].astype(str), paired["intact_answer"], paired["ablated_answer"]]
    return [
        Shares(label, *(float((column == str(number)).mean()) for column in columns)) for number, label in enumerate(labels)
    ]


def choice_labels(paired: pd.DataFrame) -> list[str]:
    """The choices' names: their text where all examples share it, otherwise their number."""
    first = list(paired["continuations"].iloc[0])
    if all(list(choices) == first for choices in paired["continuations"]):
        return [choice.strip() for choice in first]
    return [f"choice {number}" for number in range(1, 1 + max(map(len, paired["continuations"])))]


def kinds(paired: pd.DataFrame) -> list[tuple[str, int, int, int, int]]:
    """For each kind of example: name, n, intact right, fixes, harms; empty where there is one kind only."""
    groups = [(str(kind), rows) for kind, rows in paired.groupby("kind", sort=True)] if len(paired) else []
    if len(groups) < 2:
        return []
    found: list[tuple[str, int, int, int, int]] = []
    for kind, rows in groups:
        intact, ablated = rows["intact_correct"].to_numpy(bool), rows["ablated_correct"].to_numpy(bool)
        found.append((kind, len(rows), int(intact.sum()), int((~intact & ablated).sum()), int((intact & ~ablated).sum())))
    return found


def pick(paired: pd.DataFrame, key: str) -> Any | None:
    """The example of that key, or None where there is none: keys come back from the browser."""
    found = paired[paired["key"] == key]
    return next(found.itertuples(), None)


def _last_question(context: str) -> str:
    """The line of a prompt that asks: the last ``Question:``, or its end where there is none."""
    lines = [line for line in context.strip().splitlines() if line.strip()]
    asked: Sequence[str] = [line for line in lines if line.startswith("Question:")]
    if asked:
        return asked[-1].removeprefix("Question:").strip()
    return lines[-1] if lines else ""


def short(text: str, length: int) -> str:
    """A text on one line, cut to so many characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"
