"""Results as text for a terminal."""

from collections.abc import Sequence
from typing import Any

from cel_core.records import SearchRecord, Status
from cel_core.search import Tally
from cel_core.tasks import TASKS

TOP = 10  # subsets shown


def search_list(records: Sequence[SearchRecord]) -> str:
    """One line a search, newest first."""
    if not records:
        return "no searches yet: begin with  python -m cel_core search --model demo --task carry"
    rows = [
        [
            record.id,
            str(record.status),
            record.model.get("spec", record.config.model)[-40:],
            record.config.task,
            f"{percent(record.held_out.intact_accuracy)} -> {percent(record.held_out.ablated_accuracy)}"
            if record.held_out
            else "",
            points(record.held_out.gain) if record.held_out else "",
            f"{record.held_out.fixes}/{record.held_out.harms}" if record.held_out else "",
            str(record.frozen_set or ""),
            f"{record.created_at:%Y-%m-%d %H:%M}",
        ]
        for record in records
    ]
    return table(["id", "status", "model", "task", "held-out, %", "gain", "fixes/harms", "frozen set", "begun"], rows)


def search_report(record: SearchRecord, singles: Sequence[Tally], subsets: Sequence[Tally]) -> str:
    """One search in full."""
    config, held_out = record.config, record.held_out
    lines = [
        f"search {record.id}  {record.status}  {config.model} on {TASKS[config.task].title}",
        f"  {record.n_discovery:,} discovery and {record.n_held_out:,} held-out examples, p = {config.p}, k = {config.k}, "
        f"seed {config.seed}, {record.duration_s:.1f} s",
        *([f"  {record.screened}"] if record.screened else []),
        *(f"  note: {note}" for note in record.notes),
    ]
    if record.status is not Status.DONE:
        lines.append(f"  {record.stage}: {record.done:,} of {record.total:,} evaluations")
    if record.error:
        lines.append(f"  {record.error}")
    if singles:
        lines += [
            "",
            f"pool: best {min(config.p, len(singles))} of {len(singles)} heads alone, on discovery",
            _tallies(singles[: config.p]),
        ]
    if subsets:
        lines += [
            "",
            f"subsets: best {min(TOP, len(subsets))} of {len(subsets)}, on discovery",
            _tallies(subsets[:TOP]),
        ]
    if record.frozen_set and not record.beneficial:
        lines += ["", "the pool held no beneficial set (which does not prove that none exists)"]
    if held_out:
        low, high = held_out.interval
        lines += [
            "",
            f"held-out, n = {held_out.n:,}, without {record.frozen_set}:",
            f"  accuracy {percent(held_out.intact_accuracy)} -> {percent(held_out.ablated_accuracy)} %, "
            f"gain {points(held_out.gain)} points (95 % interval {points(low)} to {points(high)}), "
            f"discovery gain {points(record.discovery_gain or 0)}",
            f"  {held_out.fixes} fixes, {held_out.harms} harms, exact McNemar p = {held_out.mcnemar_p:.2g}, "
            f"errors reduced by {percent(held_out.relative_error_reduction)} %",
            *([bill(record)] if record.plain_token_layers else []),
        ]
    return "\n".join(lines)


def bill(record: SearchRecord) -> str:
    """What a search ran, beside what the plain way would have run."""
    assert record.plain_token_layers is not None
    ratio = f", {record.plain_token_layers / record.token_layers:.1f} times less" if record.token_layers else ""
    return (
        f"  {record.token_layers / 1e6:,.2f} million token-layers run; one full pass per head set and request: "
        f"{record.plain_token_layers / 1e6:,.2f} million{ratio}"
    )


def sweep_report(found: dict[str, Any]) -> str:
    """A sweep's heads, best first."""
    rows = [[h["head"], points(h["gain"]), str(h["fixes"]), str(h["harms"])] for h in found["heads"]]
    head = (
        f"{found['n']:,} examples, {found['intact_correct']:,} right intact ({percent(found['intact_correct'] / found['n'])} %)"
    )
    return f"{head}\n{table(['head', 'gain, points', 'fixes', 'harms'], rows)}"


def bench_report(found: dict[str, Any]) -> str:
    """What the engine saves, case by case."""
    rows = [
        [
            one["case"],
            str(one["n_examples"]),
            "-" if one["intact_accuracy"] is None else percent(one["intact_accuracy"]),
            f"{one['n_evaluations']:,} of {one['plain_evaluations']:,}",
            "-" if one["token_layer_ratio"] is None else f"{one['token_layer_ratio']:.2f}",
            f"{one['wall_ratio']:.2f}",
            f"{one['n_differing']} of {one['n_compared']:,}",
            f"{one['n_near_differing']} of {one['n_near']:,}",
        ]
        for one in found["comparisons"]
    ]
    head = ["case", "rows", "intact, %", "evaluations", "token-layers", "wall", "differ", "of near ties"]
    lines = [
        f"{found['model']} on {TASKS[found['task']].title}, {found['dtype']} on {found['device']}; plain way / engine",
        table(head, rows),
    ]
    if "attribution" in found:
        recall = ", ".join(f"{percent(part)} % in the best {m}" for m, part in found["attribution"]["recall"].items())
        lines.append(
            f"  attribution, {found['attribution']['attribution_s']:.1f} s: of the pool {recall or 'all heads are in it'}"
        )
    for row in found.get("memory", []):
        lines.append(
            f"  {row['bytes'] / 2**20:,.0f} MiB: {row['way']}, {row['n_sets']} head sets, {row['n_examples']} examples"
        )
    return "\n".join(lines)


def percent(fraction: float) -> str:
    """A fraction in percent, two decimals."""
    return "-" if fraction != fraction else f"{100 * fraction:.2f}"


def points(fraction: float) -> str:
    """A difference of two fractions in percentage points, signed."""
    return f"{100 * fraction:+.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: text to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.rjust(w) if cell[:1] in "+-0123456789" else cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
        return "  " + "  ".join(cells).rstrip()

    return "\n".join(map(line, [head, *rows]))


def _tallies(tallies: Sequence[Tally]) -> str:
    rows = [[str(t.head_set), points(t.gain), str(t.fixes), str(t.harms), percent(t.accuracy)] for t in tallies]
    return table(["heads", "gain, points", "fixes", "harms", "accuracy, %"], rows)
