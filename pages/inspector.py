"""One example in full: prompt, gold answer, both answers with their margins, and log-probabilities before and after as bars."""

from typing import Any

import numpy as np

from cel_core.heads import HeadSet
from cel_core.records import Part, SearchRecord
from cel_core.tasks import Scoring, Task, find_task
from pages import examples, formats, programs
from pages.markup import Markup, join, tag, term

MAX_NAMED = 6  # heads named above an example
CHOSEN = "Log-probability {}of the gold choice less that of the likeliest other one. Below 0 the other one is chosen."
MARGINS = {
    Scoring.GREEDY: "By how many nats the gold answer leads the likeliest other token, where it leads least. "
    "Below 0 the model writes something else.",
    Scoring.CHOICE: CHOSEN.format(""),
    Scoring.CHOICE_PER_CHARACTER: CHOSEN.format("per character "),
}


def show(record: SearchRecord, example: Any, part: Part, head_set: HeadSet, more: object = "") -> Markup:
    """One example, intact and ablated.

    Args:
        record: the search it belongs to.
        example: a row of `Store.paired`.
        part: the side it belongs to.
        head_set: the heads that are ablated.
        more: what stands below the answers.
    """
    kind = f", kind {example.kind}" if example.kind else ""
    title = f"{part.capitalize()} example {example.position + 1} of {formats.count(record.n_examples(part))}{kind}"
    parts: list[object] = [tag("div", f"{title}  ·  {_ablated(head_set)}", css="k"), tag("pre", example.context)]
    if len(example.tests):
        return join([*parts, programs.show(example), more])
    task = find_task(record.config.task)
    return join([*parts, _answers(example, task.scoring, examples.margin_unit(record)), more, _bars(example, task)])


def _ablated(head_set: HeadSet) -> str:
    """Which heads are ablated; of many only the first."""
    if not head_set:
        return "no head ablated"
    named = [str(head) for head in head_set]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return f"ablated: {', '.join(named[:MAX_NAMED])}{more}"


def _answers(example: Any, scoring: Scoring, unit: str) -> Markup:
    """Gold and both answers, each with its verdict and margin."""
    gold = examples.gold_text(example)
    rows = [_line("Gold", tag("b", gold))] if gold else []
    for side in ("intact", "ablated"):
        answer, margin = examples.said_text(example, side), getattr(example, f"{side}_margin_nats")
        right = bool(getattr(example, f"{side}_correct"))
        cut = examples.is_cut(example, side)
        begins = tag("span", "begins with ", css="k") if cut else ""
        said = tag("span", tag("pre", answer) if "\n" in answer else answer, css="gain" if right else "harm")
        notes: list[object] = ["right" if right else "and wrong from there on" if cut else "wrong"]
        if not np.isnan(margin):
            notes.append(tag("span", term("margin", MARGINS[scoring]), f" {formats.nats(margin)} {unit}", css="nb"))
        rows.append(_line(side.capitalize(), begins, said, tag("span", join(notes, ", "), css="sub")))
    return tag("dl", *rows, css="pair")


def _line(title: str, *said: object) -> Markup:
    return join([tag("dt", title), tag("dd", *said)])


def _bars(example: Any, task: Task) -> Markup:
    """How likely each choice is, before and after: of one gold answer the probability, of several what decides between them."""
    logprobs = np.asarray([example.intact_logprobs_nats, example.ablated_logprobs_nats], dtype=float)
    merits = logprobs / task.divisors(example.continuations)
    if merits.shape[1] == 1:
        title = "Probability of the gold answer, and its log in nats"
        shares = np.exp(merits)
        texts = [
            [f"{formats.percent(share)} %, {formats.nats(merit)}" for share, merit in zip(*each, strict=True)]
            for each in zip(shares, merits, strict=True)
        ]
    else:
        per = " per character" if task.scoring == Scoring.CHOICE_PER_CHARACTER else ""
        title = f"Log-probability of each choice{per}, nats; a full bar is 0, certainty"
        shares = 1 - merits / min(-1e-9, float(merits.min()))
        texts = [[formats.nats(merit) for merit in side] for side in merits]
    rows: list[Markup] = []
    for number, choice in enumerate(example.continuations):
        rows.append(tag("span", examples.short(choice.strip(), 60), css="name"))
        for side, css in enumerate(("barline", "barline a")):
            rows.append(tag("span", tag("i", css=css, style=f"width:{100 * shares[side, number]:.1f}%"), css="track"))
            rows.append(tag("span", texts[side][number], css="sub nb"))
    key = [tag("i", css="barline"), "intact", tag("i", css="barline a"), "ablated"]
    return join(
        [tag("div", title, css="k over"), tag("div", *rows, css="bars"), tag("div", *key, css="legend")],
    )
