"""Two programs for one task, intact and ablated: which tests each failed, and what differs, line by line."""

import difflib
from typing import Any

from pages.markup import Markup, join, tag


def show(example: Any) -> Markup:
    """The programs of one example, a row of `Store.paired`."""
    parts = [_verdict("Intact", example, "intact"), _verdict("Ablated", example, "ablated")]
    intact, ablated = str(example.intact_answer), str(example.ablated_answer)
    changes = difference(intact, ablated)
    both = tag("div", _program("Intact", intact), _program("Ablated", ablated), css="halves")
    title = tag("div", "What differs, intact to ablated", css="k over")
    differs = tag("pre", *changes, css="code") if changes else tag("p", "Both programs are the same.", css="sub")
    return join([tag("dl", *parts, css="pair"), _tests(example), both, title, differs])


def difference(before: str, after: str) -> list[Markup]:
    """Lines of `before` that are gone and lines of `after` that are new, among those that stay; empty where nothing differs."""
    lines = [line.rstrip("\r\n") for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:1] != "?"]
    if all(line.startswith("  ") for line in lines):
        return []
    return [tag("span", line + "\n", css={"+": "gain", "-": "harm"}.get(line[:1], "same")) for line in lines]


def _verdict(title: str, example: Any, side: str) -> Markup:
    right, detail = bool(getattr(example, f"{side}_correct")), str(getattr(example, f"{side}_detail") or "")
    said = "passes its tests" if right else f"fails: {detail}" if detail else "fails"
    return join([tag("dt", title), tag("span", said, css="gain" if right else "harm")])


def _tests(example: Any) -> Markup:
    """The asserts, each with the side that failed at it."""
    rows: list[Markup] = []
    for test in example.tests:
        failed = [side for side in ("intact", "ablated") if str(test).strip() in str(getattr(example, f"{side}_detail") or "")]
        note = tag("span", f"  {' and '.join(failed)} failed here", css="harm") if failed else ""
        rows.append(tag("span", str(test).strip(), note, "\n"))
    return join([tag("div", "Tests", css="k over"), tag("pre", *rows, css="code")])


def _program(title: str, text: str) -> Markup:
    return tag("div", tag("div", title, css="k"), tag("pre", text.strip("\r\n") or "(nothing)", css="code"))
