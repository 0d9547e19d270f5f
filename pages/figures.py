"""Altair figures as pure functions of records.

Drawn as SVG, so that colours are the page's own variables and a figure follows dark and light without being drawn again.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from cel_core.records import SearchRecord
from cel_core.search import Tally
from pages import formats

GAIN, HARM, INK, MUTED, LINE = "var(--gain)", "var(--harm)", "var(--ink)", "var(--muted)", "var(--line)"
POINTS = alt.Axis(format="+~r", labelExpr="datum.value == 0 ? '0' : replace(datum.label, '-', '−')")
HEIGHT_PX = 210


def dressed(chart: Any) -> Any:
    """A chart in the pages' dress: transparent, as wide as its card, thin lines, muted text."""
    return (
        chart.properties(
            width="container",
            height=HEIGHT_PX,
            background="transparent",
            autosize=alt.AutoSizeParams(type="fit", contains="padding"),
            usermeta={"embedOptions": {"renderer": "svg", "actions": False}},
        )
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=MUTED,
            titleColor=MUTED,
            domainColor=LINE,
            tickColor=LINE,
            gridColor=LINE,
            gridOpacity=0.6,
            labelFontSize=11,
            titleFontSize=11.5,
            titleFontWeight="normal",
            labelFont="var(--font)",
            titleFont="var(--font)",
            tickCount=5,
        )
        .configure_axisY(minExtent=34)  # labels are wider in the pages' font than the drawing library measures them
        .configure_legend(labelColor=MUTED, titleColor=MUTED, labelFont="var(--font)")
    )


def ranked_singles(singles: Sequence[Tally], p: int) -> Any:
    """Every screened head's discovery gain, best first; the `p` of the pool are blue, the others muted."""
    rows = [
        {
            "rank": rank,
            "head": str(t.head_set),
            "points": 100 * t.gain,
            "colour": GAIN if rank <= p else MUTED,
            "said": f"{formats.points(t.gain, t.n)}{'' if t.exact else ' at most'}",
            "opacity": 0.85 if t.exact else 0.3,
        }
        for rank, t in enumerate(singles, start=1)
    ]
    base = alt.Chart(pd.DataFrame(rows))
    zero = alt.Chart(pd.DataFrame([{}])).mark_rule(color=MUTED, strokeDash=[3, 3]).encode(y=alt.datum(0))
    dots = base.mark_circle(size=28).encode(
        x=alt.X(
            "rank:Q",
            title="Rank among the screened heads",
            scale=alt.Scale(domain=[0, len(rows) + 1], nice=False),
            axis=alt.Axis(grid=False),
        ),
        y=alt.Y("points:Q", title="Discovery gain, points", axis=POINTS),
        color=alt.Color("colour:N", scale=None),
        opacity=alt.Opacity("opacity:Q", scale=None),
        tooltip=[
            alt.Tooltip("head:N", title="head"),
            alt.Tooltip("rank:Q", title="rank"),
            alt.Tooltip("said:N", title="gain, points"),
        ],
    )
    return dressed(alt.layer(zero, dots))


def discovery_against_held_out(record: SearchRecord, subsets: Sequence[Tally]) -> Any:
    """The frozen set's gain on both sides, with the held-out interval, over the discovery gains of the subsets measured
    in full.

    On the dashed line both sides agree; below it the discovery gain was partly luck of the selection.
    """
    assert record.held_out is not None and record.discovery_gain is not None
    found, interval = record.held_out, record.held_out.interval
    frozen = {
        "heads": formats.heads(record.frozen_set) if record.frozen_set else "",
        "discovery": 100 * record.discovery_gain,
        "held_out": 100 * found.gain,
        "low": 100 * interval.low,
        "high": 100 * interval.high,
        "n": found.n,
    }
    full = [t for t in subsets if t.exact and t.head_set != record.frozen_set]
    others = pd.DataFrame([(formats.heads(t.head_set), 100 * t.gain) for t in full], columns=["heads", "discovery"])
    ends = [*others["discovery"], frozen["discovery"], frozen["low"], frozen["high"], 0.0]
    low, high = min(ends), max(ends)
    room = 0.06 * max(1.0, high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    x = alt.X("discovery:Q", title="Discovery gain, points", scale=scale, axis=POINTS)
    y = alt.Y("held_out:Q", title="Held-out gain, points", scale=scale, axis=POINTS)
    line = pd.DataFrame({"discovery": [low - room, high + room], "held_out": [low - room, high + room]})
    agree = alt.Chart(line).mark_line(color=MUTED, strokeDash=[3, 3], strokeWidth=1).encode(x=x, y=y)
    zero = alt.Chart(pd.DataFrame([{}])).mark_rule(color=LINE).encode(y=alt.datum(0))
    rug = (
        alt.Chart(others)
        .mark_tick(color=MUTED, opacity=0.45, thickness=1, size=9)
        .encode(
            x=x,
            y=alt.value(HEIGHT_PX - 46),
            tooltip=[alt.Tooltip("heads:N"), alt.Tooltip("discovery:Q", title="discovery gain, points", format="+.2f")],
        )
    )
    one = alt.Chart(pd.DataFrame([frozen]))
    colour = GAIN if found.gain > 0 else HARM
    bar = one.mark_rule(color=colour, strokeWidth=1.5).encode(
        x=x, y=alt.Y("low:Q", scale=scale, title="Held-out gain, points"), y2="high:Q"
    )
    dot = one.mark_circle(size=90, color=colour, opacity=1).encode(
        x=x,
        y=y,
        tooltip=[
            alt.Tooltip("heads:N", title="frozen set"),
            alt.Tooltip("discovery:Q", title="discovery gain, points", format="+.2f"),
            alt.Tooltip("held_out:Q", title="held-out gain, points", format="+.2f"),
            alt.Tooltip("low:Q", title="95 % interval, low", format="+.2f"),
            alt.Tooltip("high:Q", title="95 % interval, high", format="+.2f"),
            alt.Tooltip("n:Q", title="held-out n", format=","),
        ],
    )
    return dressed(alt.layer(zero, agree, rug, bar, dot))
