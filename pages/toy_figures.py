"""Altair figures of the toy page, as pure functions of what the toy engine returns; in the dress of `figures`.

Channels are written out (`alt.X`, `alt.Tooltip`), never as short strings: Altair takes ten times as long over those.
"""

import functools
import json
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from cel_core.toy import PopulationSummary, Risks, ScalePoint, Trajectory
from pages.figures import GAIN, HARM, INK, MUTED, dressed
from pages.toy_words import value

Side = Literal["left", "right"] | None
N_COLOURS = 8
RACE_BELOW = 0.01
LOWEST_SHOWN = 1e-8
CURVES_PX = 200
WIDE_PX = 190
STEP = alt.X(
    "step:Q",
    title="Gradient-descent step",
    axis=alt.Axis(format=",d", grid=False, tickCount=4),
    scale=alt.Scale(nice=False, zero=True),
)


def colour(head: int) -> str:
    """A head's colour, one of N_COLOURS of the page's own."""
    return f"var(--h{head % N_COLOURS})"


class Figure:
    """A chart as plain data: a template made by Altair once, with this run's numbers in it (Altair takes 40 ms a chart)."""

    def __init__(self, template: str, datasets: dict[str, list[dict[str, Any]]]) -> None:
        self._template, self._datasets = template, datasets

    def to_dict(self, validate: bool = False) -> dict[str, Any]:
        """The Vega-Lite specification; the argument is Altair's and changes nothing."""
        return json.loads(self._template) | {"datasets": self._datasets}


def coefficients(run: Trajectory, feature: int, logarithmic: bool) -> Figure:
    """What every head gives one feature over the steps; in logarithms the sizes, where the race is seen."""
    shown, optimum = run.coefficients[:, :, feature], float(run.config.optimum[feature])
    levels = [_level(optimum, "optimum")]
    if logarithmic:
        shown = np.maximum(np.abs(shown), LOWEST_SHOWN)
        levels.append(_level(RACE_BELOW, "race below 0.01"))
    rows = [
        {"step": int(step), **{f"head {head}": float(c) for head, c in enumerate(row)}}
        for step, row in zip(run.steps, _short(shown), strict=True)
    ]
    data = {"lines": rows, "levels": levels, "checkpoint": _checkpoint(run)}
    return Figure(_curves_template(run.config.heads, logarithmic, _label_side(run)), data)


def risks(run: Trajectory, without: int | None) -> Figure:
    """Risks A, B and joint over the steps; dashed where a head is deleted in every state."""
    data = {"lines": _risk_rows(run, run.risks), "checkpoint": _checkpoint(run)}
    if without is not None:
        data["without"] = _risk_rows(run, run.risks_without(without))
    return Figure(_risks_template(_label_side(run), without is not None), data)


@functools.cache
def _curves_template(n_heads: int, logarithmic: bool, side: Side) -> str:
    names = [f"head {head}" for head in range(n_heads)]
    shades = alt.Scale(domain=names, range=[colour(head) for head in range(n_heads)])
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(nice=False, zero=True)
    title = "Coefficient, size (logarithmic)" if logarithmic else "Effective coefficient"
    axis = alt.Axis(tickCount=4, titlePadding=8, **({"format": ".0e"} if logarithmic else {}))
    tips = [
        alt.Tooltip("head:N"),
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("c:Q", title="coefficient", format=".4g"),
    ]
    lines = alt.Chart(alt.NamedData("lines")).transform_fold(names, as_=["head", "c"]).mark_line(strokeWidth=1.8)
    y, shade = alt.Y("c:Q", title=title, scale=scale, axis=axis), alt.Color("head:N", scale=shades, legend=None)
    curves = lines.encode(x=STEP, y=y, color=shade, tooltip=tips)
    rule = alt.Chart(alt.NamedData("levels")).mark_rule(color=MUTED, strokeDash=[4, 3], strokeWidth=1)
    levels = rule.encode(y=alt.Y("at:Q", title=title, scale=scale, axis=axis), tooltip=[alt.Tooltip("what:N")])
    return _template(alt.layer(levels, *_checkpoint_marks(0.14 if logarithmic else 0.4, side), curves), CURVES_PX)


@functools.cache
def _risks_template(side: Side, ablated: bool) -> str:
    shades = alt.Color("of:N", scale=alt.Scale(domain=["A", "B", "joint"], range=[GAIN, HARM, INK]), legend=None)
    tips = [alt.Tooltip("of:N", title="risk"), alt.Tooltip("step:Q", format=","), alt.Tooltip("risk:Q", format=".4g")]
    scale, axis = alt.Scale(nice=False, zero=True), alt.Axis(tickCount=4, titlePadding=8)
    y = alt.Y("risk:Q", title="Risk, squared target units", scale=scale, axis=axis)
    solid = alt.Chart(alt.NamedData("lines")).mark_line(strokeWidth=1.8)
    dashed = alt.Chart(alt.NamedData("without")).mark_line(strokeWidth=1.4, strokeDash=[4, 3])
    layers = [each.encode(x=STEP, y=y, color=shades, tooltip=tips) for each in ((solid, dashed) if ablated else (solid,))]
    return _template(alt.layer(*_checkpoint_marks(0.4, side), *layers), WIDE_PX)


def _template(chart: Any, height_px: int) -> str:
    return json.dumps(_sized(chart, height_px).to_dict(validate=False))


def _checkpoint_marks(down: float, side: Side) -> list[Any]:
    """The checkpoint's line and its name, `down` that share of the plot; nothing where the run does not reach it."""
    if side is None:
        return []
    rule = alt.Chart(alt.NamedData("checkpoint")).mark_rule(color=MUTED, strokeDash=[2, 3]).encode(x=STEP)
    dx = -5 if side == "right" else 5
    name = alt.Chart(alt.NamedData("checkpoint")).mark_text(align=side, dx=dx, color=MUTED, fontSize=11, font="var(--font)")
    return [rule, name.encode(x=STEP, y=alt.value(CURVES_PX * down), text=alt.Text("name:N"))]


def _risk_rows(run: Trajectory, found: Risks) -> list[dict[str, Any]]:
    named = ("A", found.task_a), ("B", found.task_b), ("joint", found.joint)
    return [
        {"step": int(step), "risk": float(risk), "of": name}
        for name, values in named
        for step, risk in zip(run.steps, _short(values), strict=True)
    ]


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
        axis=alt.Axis(format=".0e", values=_decades(frame["loser_median"]), titlePadding=8),
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


def _decades(values: Any) -> list[float]:
    """Powers of ten for a logarithmic axis."""
    low, high = int(np.floor(np.log10(np.min(values)))), int(np.ceil(np.log10(np.max(values))))
    return [10.0**each for each in range(low, high + 1)]


def _short(values: Any) -> Any:
    """Five significant digits: more than a plot can show, and half the bytes."""
    values = np.asarray(values)
    size = 10.0 ** (4 - np.floor(np.log10(np.maximum(np.abs(values), 1e-30))))
    return np.round(values * size) / size


def _level(height: float, label: str) -> dict[str, Any]:
    """A dashed line across, with its name on hover."""
    return {"at": height, "what": f"{label}, {value(height)}"}


def _checkpoint(run: Trajectory) -> list[dict[str, Any]]:
    """The checkpoint, where the run reached it."""
    return [] if run.checkpoint is None else [{"step": run.checkpoint, "name": "checkpoint"}]


def _label_side(run: Trajectory) -> Side:
    """How the checkpoint's name is aligned to its line; None without a checkpoint."""
    if run.checkpoint is None:
        return None
    return "right" if run.checkpoint > 0.7 * float(run.steps[-1]) else "left"
