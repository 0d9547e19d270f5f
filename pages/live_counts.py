"""What the Live page shows of one head set: counters, the heads that are off, and the examples in three lists."""

import json
from collections.abc import Mapping, Sequence

import pandas as pd

from cel_core import statistics
from cel_core.heads import HeadSet
from cel_core.records import Part, SearchRecord
from cel_core.search import Tally
from pages import downloads, examples, formats, headline, layout
from pages.markup import Markup, button, figure, filter_box, join, notice, progress, signed, tag, term

MAX_ROWS = 60  # drawn of each list; the filter box reaches the others
LISTS = (("fix", "Fixes"), ("harm", "Harms"), ("same", "Unchanged"))
OFF_TIP = "These heads are ablated: their output is set to zero at every token."
EXPLORATION = "looking at held-out examples here is exploration, not evidence"
WRITING = join([tag("div", "Waiting for the model to write.", css="k over"), tag("div", tag("i"), css="prog unknown")])


def page_head(record: SearchRecord, singles: Sequence[Tally]) -> Markup:
    """Title, what is looked at, and the presets."""
    size = f"{formats.count(record.n_heads)} heads"
    link = tag("a", "search ", tag("span", record.id, css="mono"), href=f"/search?run={record.id}", data_keep_run=True)
    best = " ".join(str(t.head_set) for t in singles[: record.config.p])
    parts = [button("None", data_set_heads="", title="Every head on")]
    if record.frozen_set:
        parts.append(button("Frozen set", data_set_heads=record.frozen_set, title="The set that the search froze"))
    if best:
        tip = f"The {len(best.split())} best single heads, one at each press"
        parts.append(button("Best singles", data_cycle=best, title=tip))
    parts.append(button("Copy link", data_copy_link=True, title="The link opens this view: search, heads, side, example"))
    return layout.page_head(headline.title(record), size, link, EXPLORATION, actions=join(parts))


def counts(compared: pd.DataFrame, head_set: HeadSet, n: int) -> Markup:
    """Accuracy with and without the heads, on the examples known so far.

    Args:
        compared: what `examples.compared` gives.
        head_set: the heads that are off.
        n: examples on this side.
    """
    known = len(compared)
    fixes, harms = int((compared["flip"] == "fix").sum()), int((compared["flip"] == "harm").sum())
    right = int(compared["intact_correct"].astype(bool).sum())
    below = f"n = {formats.count(known)}" if known == n else f"n = {formats.count(known)} of {formats.count(n)}"
    without = f"Ablated, {len(head_set)} head{'' if len(head_set) == 1 else 's'}" if head_set else "Ablated, no head"
    if not known:
        parts = [figure(label, "–", below=below) for label in ("Intact", without, "Gain", "Fixes", "Harms")]
    else:
        gain = statistics.gain(fixes, harms, known)
        interval = f"95 % interval {formats.interval(statistics.gain_interval(fixes, harms, known), known)}"
        shown = signed(formats.points(gain, known), gain)
        parts = [
            figure("Intact", formats.percent(right / known, known), unit="%", below=below),
            figure(without, formats.percent((right + fixes - harms) / known, known), unit="%", below=below),
            figure("Gain", shown, unit="points", below=interval if head_set else ""),
            figure("Fixes", tag("span", formats.count(fixes), css="gain"), below="wrong → right"),
            figure("Harms", tag("span", formats.count(harms), css="harm"), below="right → wrong"),
        ]
    return tag("div", *parts, css="card counts", data_heads=str(head_set), aria_live="polite")


def strip(
    address: Mapping[str, str],
    record: SearchRecord,
    part: Part,
    head_set: HeadSet,
    known: int,
    n: int,
    error: str = "",
    loading: bool = False,
) -> Markup:
    """The heads that are off, the side looked at, and how far its outcomes are."""
    chips = [
        tag("button", head, type="button", css="chip on", data_switch=head, title=f"Switch {head} on again")
        for head in head_set
    ]
    sides = [_side(record, side, part) for side in Part]
    heads = tag("span", *chips, css="chips") if chips else tag("span", "none", css="sub")
    far = (
        "loading the model" if loading and not error and known < n else f"{formats.count(known)} of {formats.count(n)} examples"
    )
    said = f"both answers to {formats.count(known)} {part} examples"
    tables = downloads.links(record.id, part, {"heads": str(head_set)}, said) if known else ""
    end = tag("span", tag("span", far, css="sub"), tables, tag("span", *sides, css="segments"), css="end")
    line = tag("div", tag("span", term("Off", OFF_TIP), css="k"), heads, end, css="offline")
    parts = [line]
    if error:
        what, remedy = layout.in_two(error)
        parts.append(notice(what[:1].upper() + what[1:], remedy[:1].upper() + remedy[1:], css="bad wide"))
    elif known < n:
        parts.append(progress(known, n, "Outcomes of this head set"))
    return tag("div", *parts, css="card strip", data_asked=str(head_set), data_address=json.dumps(dict(address)))


def _side(record: SearchRecord, side: Part, chosen: Part) -> Markup:
    sealed = side is Part.HELD_OUT and record.frozen_set is None
    tip = "Sealed until a set is frozen" if sealed else f"Look at the {side} examples"
    pressed = "true" if side is chosen else "false"
    return tag("button", side.capitalize(), type="button", data_press=side, aria_pressed=pressed, disabled=sealed, title=tip)


def first_of_each(compared: pd.DataFrame) -> list[int]:
    """Positions of the examples that are drawn where no words are sought."""
    return [int(i) for name, _ in LISTS for i in compared.loc[compared["flip"] == name, "position"].head(MAX_ROWS)]


def listed(
    record: SearchRecord, compared: pd.DataFrame, found: pd.DataFrame, selected: str, words: str, complete: bool
) -> Markup:
    """The examples in three lists, of which one is seen at a time.

    Args:
        record: the search.
        compared: all examples known; their texts are not needed.
        found: with their texts, those that hold the words; without words at least the first of each list, and the selected.
        selected: key of the example that is open.
        words: what is sought.
        complete: whether all examples are known.
    """
    sizes = compared["flip"].value_counts()
    of_selected = found.loc[found["key"] == selected, "flip"]
    shown = str(of_selected.iloc[0]) if len(of_selected) else next((name for name, _ in LISTS if sizes.get(name)), "fix")
    buttons = [
        tag(
            "button",
            f"{title} {formats.count(int(sizes.get(name, 0)))}",
            type="button",
            data_group_of="live",
            data_group=name,
            aria_pressed="true" if name == shown else "false",
        )
        for name, title in LISTS
    ]
    drawn = pd.concat([found[found["flip"] == name].head(MAX_ROWS) for name, _ in LISTS])
    empty = "No example fits the filter." if words else "None." if complete else "Waiting for the first examples."
    rows = examples.example_table(record, drawn, "live", selected, empty, without=("Flip",))
    cut = len(drawn) < (len(found) if words else len(compared))
    note = f"The first {MAX_ROWS} of each list are drawn; the filter searches all." if cut else ""
    tools = tag("div", tag("span", *buttons, css="segments"), tag("span", filter_box("live", "Search"), css="end"), css="tools")
    below = tag("p", note, css="sub empty") if note else ""
    body = tag("div", rows, below, css="tall", data_words=words)
    return join([tools, body])


def side_by_side(intact: str, ablated: str, head_set: HeadSet) -> Markup:
    """Two continuations of one prompt."""
    without = f"Ablated: {formats.heads(head_set)}" if head_set else "Ablated: no head is off"
    halves = [
        tag("div", tag("div", title, css="k"), tag("pre", text.strip("\n") or "(nothing: the model ends here)"))
        for title, text in (("Intact", intact), (without, ablated))
    ]
    return tag("div", *halves, css="halves")
