"""Examples beside each other, intact and ablated: a table of flips, and one example in full.

What is shown comes from models and data sets, so every text goes through `pages.markup`.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pages import formats, programs
from pages.markup import Column, Markup, Row, join, table, tag

MAX_ROWS = 400  # flips drawn; the CSV has all
PROMPT_CHARACTERS = 160
COLUMNS = (
    Column("Flip"),
    Column("Kind"),
    Column("Prompt", "cut"),
    Column("Gold", "n"),
    Column("Intact", "n"),
    Column("Ablated", "n"),
    Column("Margin, nats", "n"),
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
    """The examples whose prompt, kind or answers hold all of the words."""
    for word in words.lower().split():
        columns = ("kind", "context", "answer", "intact_answer", "ablated_answer")
        found = found[sum(found[c].str.lower().str.contains(word, regex=False).astype(int) for c in columns) > 0]
    return found


def answer_text(example: Any, answer: str) -> str:
    """An outcome's answer as a reader sees it: for choices the choice itself, not its number."""
    choices = list(example.continuations)
    if len(choices) > 1 and answer.isdigit() and int(answer) < len(choices):
        return choices[int(answer)].strip()
    return answer.strip()


def said_text(example: Any, side: str) -> str:
    """What a side (intact, ablated) answered; a wrong one in words is known up to where it leaves the gold answer (…)."""
    answer = answer_text(example, getattr(example, f"{side}_answer"))
    cut = len(example.continuations) == 1 and not getattr(example, f"{side}_correct") and not answer.endswith(">")
    return f"{answer}…" if cut else answer


def gold_text(example: Any) -> str:
    """The gold answer as a reader sees it."""
    choices = list(example.continuations)
    return choices[example.gold].strip() if len(choices) > 1 else example.answer.strip()


def flips_table(found: pd.DataFrame, name: str, selected: str = "") -> Markup:
    """The flips as rows that can be picked."""
    drawn = example_table(found.head(MAX_ROWS), name, selected, "No answer changed.")
    if len(found) <= MAX_ROWS:
        return drawn
    return join([drawn, tag("p", f"The first {MAX_ROWS} of {formats.count(len(found))}; the CSV has all.", css="sub empty")])


def example_table(found: pd.DataFrame, name: str, selected: str, empty: str, without: Collection[str] = ()) -> Markup:
    """Compared examples as rows that can be picked; the column of kinds is left out where there is one kind only."""
    left_out = {*without, *(() if found["kind"].nunique() > 1 else ("Kind",))}
    chosen = [i for i, column in enumerate(COLUMNS) if column.title not in left_out]
    rows = []
    for example in found.itertuples():
        cells = _cells(example)
        rows.append(Row([cells[i] for i in chosen], key=example.key, group=example.flip, selected=example.key == selected))
    return table([COLUMNS[i] for i in chosen], rows, name, empty)


def _cells(example: Any) -> list[object]:
    """One compared example as the cells of `COLUMNS`."""
    margin = f"{formats.nats(example.intact_margin_nats)} → {formats.nats(example.ablated_margin_nats)}"
    return [
        tag("span", example.flip, css={"fix": "gain", "harm": "harm"}.get(example.flip, "")),
        example.kind,
        _short(_last_question(example.context), PROMPT_CHARACTERS),
        _short(gold_text(example), 32),
        _short(said_text(example, "intact"), 32),
        _short(said_text(example, "ablated"), 32),
        margin if not np.isnan(example.intact_margin_nats) else "–",
    ]


def inspector(example: Any, part: str, n: int, more: object = "") -> Markup:
    """One example in full.

    Args:
        example: a row of `Store.paired`.
        part: the side it belongs to.
        n: examples on that side.
        more: what stands below prompt and answers.
    """
    title = f"{part.capitalize()} example {example.position + 1} of {formats.count(n)}"
    if example.kind:
        title += f", kind {example.kind}"
    parts: list[object] = [tag("div", title, css="k"), tag("pre", example.context)]
    if len(example.tests):
        return join([*parts, programs.show(example), more])
    return join([*parts, _answers(example), more, _bars(example)])


def _answers(example: Any) -> Markup:
    """Gold and both answers, each with its margin."""
    rows: list[Markup] = [_line("Gold", tag("b", gold_text(example)), "")] if gold_text(example) else []
    for name, title in (("intact", "Intact"), ("ablated", "Ablated")):
        answer = said_text(example, name)
        right = bool(getattr(example, f"{name}_correct"))
        margin = getattr(example, f"{name}_margin_nats")
        shown: object = tag("pre", answer) if "\n" in answer else answer
        detail = getattr(example, f"{name}_detail")
        said = tag("span", shown, css="gain" if right else "harm")
        verdict = ("right" if right else "wrong") + (f", {detail}" if detail else "")
        rows.append(_line(title, said, f"{verdict}, margin {formats.nats(margin)} nats" if not np.isnan(margin) else verdict))
    return tag("dl", *rows, css="pair")


def _line(title: str, value: object, note: str) -> Markup:
    return join([tag("dt", title), tag("span", value), tag("span", note, css="sub")])


def _bars(example: Any) -> Markup:
    """Each choice's log-probability before and after."""
    before = np.asarray(example.intact_logprobs_nats, dtype=float)
    after = np.asarray(example.ablated_logprobs_nats, dtype=float)
    longest = max(1e-9, float(np.abs([before, after]).max()))
    several = len(example.continuations) > 1
    title = f"Log-probability of {'each choice' if several else 'the gold answer'}, nats: the shorter bar is the likelier"
    rows: list[Markup] = []
    for choice, x, y in zip(example.continuations, before, after, strict=True):
        rows.append(tag("span", _short(choice.strip(), 60), css="name"))
        for css, value in (("barline", x), ("barline a", y)):
            rows.append(tag("span", css=css, style=f"width:{100 * abs(value) / longest:.1f}%"))
            rows.append(tag("span", formats.nats(value), css="sub"))
    key = [
        tag("span", css="barline", style="width:10px"),
        "intact",
        tag("span", css="barline a", style="width:10px"),
        "ablated",
    ]
    return join(
        [
            tag("div", title, css="k over"),
            tag("div", *rows, css="bars"),
            tag("div", *key, css="legend"),
        ]
    )


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


def _short(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"
