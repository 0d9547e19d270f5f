"""Altair figures of the toy page, as pure functions of what the toy engine returns; in the dress of `figures`.

Channels are written out (`alt.X`, `alt.Tooltip`), never as short strings: Altair takes ten times as long over those.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from cel_core.toy import PopulationSummary, ScalePoint, Trajectory
from pages.figures import GAIN, HARM, INK, MUTED, dressed
from pages.toy_words import value

N_COLOURS = 8
RACE_BELOW = 0.01
LOWEST_SHOWN = 1e-8
CURVES_PX = 200
WIDE_PX = 190
STEP_AXIS = alt.Axis(format=",d", grid=False, tickCount=4)


def colour(head: int) -> str:
    """A head's colour, one of N_COLOURS of the page's own."""
    return f"var(--h{head % N_COLOURS})"


def coefficients(run: Trajectory, feature: int, logarithmic: bool) -> Any:
    """What every head gives one feature over the steps; in logarithms the sizes, where the race is seen."""
    shown = run.coefficients[:, :, feature]
    title = "Effective coefficient"
    scale, top = alt.Scale(nice=False, zero=True), 0.0
    if logarithmic:
        shown, title = np.maximum(np.abs(shown), LOWEST_SHOWN), "Coefficient, size (logarithmic)"
        top = 3 * max(float(run.config.optimum[feature]), float(shown.max()))
        scale = alt.Scale(type="log", domain=[max(LOWEST_SHOWN, float(shown.min())), top], nice=False)
    names = [f"head {head}" for head in range(run.config.heads)]
    frame = pd.DataFrame(_short(shown), columns=names)
    frame.insert(0, "step", run.steps)
    x = alt.X("step:Q", title="Gradient-descent step", axis=STEP_AXIS, scale=alt.Scale(domain=[0, _last(run)], nice=False))
    axis = alt.Axis(tickCount=4, titlePadding=8, **({"format": ".0e", "values": _decades(shown, top)} if logarithmic else {}))
    lines = (
        alt.Chart(frame)
        .transform_fold(names, as_=["head", "c"])
        .mark_line(strokeWidth=1.8, clip=True)
        .encode(
            x=x,
            y=alt.Y("c:Q", title=title, scale=scale, axis=axis),
            color=alt.Color("head:N", scale=alt.Scale(domain=names, range=[colour(h) for h in range(len(names))]), legend=None),
            tooltip=[
                alt.Tooltip("head:N"),
                alt.Tooltip("step:Q", format=","),
                alt.Tooltip("c:Q", title="coefficient", format=".4g"),
            ],
        )
    )
    marks = [_level(float(run.config.optimum[feature]), "optimum"), *_checkpoint(run, 0.2 if logarithmic else 0.4)]
    if logarithmic:
        marks.append(_level(RACE_BELOW, "race below 0.01"))
    return _sized(alt.layer(*marks, lines), CURVES_PX)


def risks(run: Trajectory, without: int | None) -> Any:
    """Risks A, B and joint over the steps; dashed where a head is deleted in every state."""
    tasks = ("A", run.risks.task_a), ("B", run.risks.task_b), ("joint", run.risks.joint)
    frames = [pd.DataFrame({"step": run.steps, "risk": _short(values), "of": name}) for name, values in tasks]
    colours = alt.Color("of:N", scale=alt.Scale(domain=["A", "B", "joint"], range=[GAIN, HARM, INK]), legend=None)
    x = alt.X("step:Q", title="Gradient-descent step", axis=STEP_AXIS, scale=alt.Scale(domain=[0, _last(run)], nice=False))
    tips = [alt.Tooltip("of:N", title="risk"), alt.Tooltip("step:Q", format=","), alt.Tooltip("risk:Q", format=".4g")]
    y = alt.Y("risk:Q", title="Risk, squared target units", scale=alt.Scale(nice=False, zero=True), axis=alt.Axis(tickCount=4))
    lines = alt.Chart(pd.concat(frames)).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colours, tooltip=tips)
    layers = [*_checkpoint(run), lines]
    if without is not None:
        found = run.risks_without(without)
        after = ("A", found.task_a), ("B", found.task_b), ("joint", found.joint)
        ablated = pd.concat([pd.DataFrame({"step": run.steps, "risk": _short(values), "of": name}) for name, values in after])
        dashed = alt.Chart(ablated).mark_line(strokeWidth=1.4, strokeDash=[4, 3])
        layers.append(dashed.encode(x=x, y=y, color=colours, tooltip=tips))
    return _sized(alt.layer(*layers), WIDE_PX)


def gains(found: PopulationSummary) -> Any | None:
    """Quartiles and median of what the deletion does on E, and where the theorem puts it; None without a run on E."""
    named = (
        ("A falls", "t²", found.task_a_drop, GAIN),
        ("B rises", "3t²", found.task_b_rise, HARM),
        ("joint rises", "t²/2", found.joint_rise, INK),
    )
    rows = [
        {
            "what": what,
            "theorem": theorem,
            "q1": spread.q1,
            "median": spread.median,
            "q3": spread.q3,
            "predicted": spread.predicted,
            "colour": shade,
        }
        for what, theorem, spread, shade in named
        if spread is not None
    ]
    if not rows:
        return None
    tips = [
        alt.Tooltip("what:N", title="without the head"),
        alt.Tooltip("q1:Q", title="quartile 1", format=".5f"),
        alt.Tooltip("median:Q", format=".5f"),
        alt.Tooltip("q3:Q", title="quartile 3", format=".5f"),
        alt.Tooltip("predicted:Q", title="theorem", format=".5f"),
    ]
    base = alt.Chart(pd.DataFrame(rows))
    axis = alt.Axis(grid=False, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("what:N", title=None, sort=[row["what"] for row in rows], axis=axis)
    low, high = (edge(row[key] for row in rows for key in ("q1", "q3", "predicted")) for edge in (min, max))
    scale = alt.Scale(domain=[min(0.0, low), 1.08 * high], nice=False)
    shade = alt.Color("colour:N", scale=None)
    bar = base.mark_rule(strokeWidth=7, opacity=0.35).encode(
        x=alt.X("q1:Q", title="Change of the risk on E: median and quartiles", scale=scale),
        x2=alt.X2("q3:Q"),
        y=y,
        color=shade,
        tooltip=tips,
    )
    dot = base.mark_circle(size=70, opacity=1).encode(x=alt.X("median:Q"), y=y, color=shade, tooltip=tips)
    tick = base.mark_tick(color=MUTED, thickness=1.5, size=34).encode(x=alt.X("predicted:Q"), y=y, tooltip=tips)
    label = base.mark_text(dy=-24, fontSize=11, color=MUTED, font="var(--font)").encode(
        x=alt.X("predicted:Q"), y=y, text=alt.Text("theorem:N")
    )
    return _sized(alt.layer(tick, label, bar, dot), WIDE_PX)


def scaling(points: Sequence[ScalePoint]) -> Any | None:
    """The losers' median against alpha, both logarithmic, with a line of slope 4; None without a point."""
    usable = [point for point in points if point.loser_median]
    if not usable:
        return None
    frame = pd.DataFrame(usable)
    alpha, loser = np.log(frame["alpha"]), np.log(frame["loser_median"])
    at = np.exp(np.array([alpha.min() - 0.15, alpha.max() + 0.15]))
    height = float((loser - 4 * alpha).mean())
    line = pd.DataFrame({"alpha": at, "loser_median": np.exp(height) * at**4})
    ends = alt.Scale(type="log", domain=[float(at[0]), float(at[1])], nice=False)
    ticks = alt.Axis(values=[float(each) for each in frame["alpha"]], format="~g", grid=False)
    x = alt.X("alpha:Q", title="Scale of the start, alpha (logarithmic)", scale=ends, axis=ticks)
    y = alt.Y(
        "loser_median:Q",
        title="Losing heads, median sum",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(format=".0e", values=_decades(frame["loser_median"], float(frame["loser_median"].max())), titlePadding=8),
    )
    slope = alt.Chart(line).mark_line(color=MUTED, strokeDash=[4, 3], strokeWidth=1.2).encode(x=x, y=y)
    dots = (
        alt.Chart(frame)
        .mark_circle(size=70, color=GAIN, opacity=1)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("alpha:Q", format="~g"),
                alt.Tooltip("loser_median:Q", title="losing heads", format=".3g"),
                alt.Tooltip("n_seeds:Q", title="runs", format=","),
                alt.Tooltip("converged_share:Q", title="converged", format=".1%"),
            ],
        )
    )
    return _sized(alt.layer(slope, dots), WIDE_PX)


def frame_of(run: Trajectory) -> pd.DataFrame:
    """A run as a table: every head's coefficient of every feature, and the risks, intact and without each head."""
    config = run.config
    columns: dict[str, Any] = {"step": run.steps}
    for j, name in enumerate(config.feature_names):
        columns |= {f"{name}_head{head}": run.coefficients[:, head, j] for head in range(config.heads)}
    columns |= {"risk_a": run.risks.task_a, "risk_b": run.risks.task_b, "joint": run.risks.joint}
    for head in range(config.heads):
        found = run.risks_without(head)
        columns |= {f"risk_a_without{head}": found.task_a, f"risk_b_without{head}": found.task_b}
    return pd.DataFrame(columns)


def _sized(chart: Any, height_px: int) -> Any:
    return dressed(chart).properties(height=height_px)


def _decades(values: Any, top: float) -> list[float]:
    """Powers of ten for a logarithmic axis, at most seven of them."""
    low, high = int(np.floor(np.log10(np.min(values)))), int(np.ceil(np.log10(top)))
    step = max(1, -(-(high - low) // 6))
    return [10.0**each for each in range(high, low - 1, -step)][::-1]


def _last(run: Trajectory) -> int:
    return max(1, int(run.steps[-1]))


def _short(values: Any) -> Any:
    """Five significant digits: more than a plot can show, and half the bytes."""
    values = np.asarray(values)
    size = 10.0 ** (4 - np.floor(np.log10(np.maximum(np.abs(values), 1e-30))))
    return np.round(values * size) / size


def _level(height: float, label: str) -> Any:
    """A dashed line across, with its name on hover."""
    frame = pd.DataFrame([{"at": height, "what": f"{label}, {value(height)}"}])
    return (
        alt.Chart(frame)
        .mark_rule(color=MUTED, strokeDash=[4, 3], strokeWidth=1)
        .encode(y=alt.Y("at:Q"), tooltip=[alt.Tooltip("what:N")])
    )


def _checkpoint(run: Trajectory, down: float = 0.4) -> list[Any]:
    """The checkpoint's line and its name, `down` that share of the plot, where the run reached it."""
    if run.checkpoint is None:
        return []
    near_end = run.checkpoint > 0.7 * _last(run)
    frame = pd.DataFrame([{"step": run.checkpoint, "name": "checkpoint"}])
    rule = alt.Chart(frame).mark_rule(color=MUTED, strokeDash=[2, 3]).encode(x=alt.X("step:Q"))
    align, dx = ("right", -5) if near_end else ("left", 5)
    text = alt.Chart(frame).mark_text(align=align, dx=dx, color=MUTED, fontSize=11, font="var(--font)")
    return [rule, text.encode(x=alt.X("step:Q"), y=alt.value(CURVES_PX * down), text=alt.Text("name:N"))]
