"""The toy page's sentences: what the theorem says, and what these numbers show."""

import math

from cel_core.toy import PopulationSummary, ScalePoint, Trajectory, in_event, order_of
from pages import formats
from pages.toy_question import Question

COUNTED = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
LARGE = 100_000
NEAR = 0.01  # of the optimum: converged, as far as a sentence is concerned
RACE = (
    "All heads start near zero and grow ever faster while they are small; the first one out takes the feature, and the "
    "others stop where they are, of order alpha⁴."
)


def value(number: float, digits: int = 3) -> str:
    """A coefficient or risk: fixed decimals, or a power of ten where they would all be zero."""
    if number != 0 and not 0.5 * 10.0**-digits <= abs(number) < LARGE:
        mantissa, _, exponent = f"{number:.1e}".partition("e")
        return f"{mantissa}·10{_raised(int(exponent))}".replace("-", "−")
    return f"{number:.{digits}f}".replace("-", "−") if round(number, digits) else f"{0:.{digits}f}"


def signed(number: float, digits: int = 3) -> str:
    """A change, with its sign."""
    text = value(number, digits)
    return text if text.startswith("−") or not float(f"{number:.{digits}f}") else f"+{text}"


def counted(n: int, noun: str) -> str:
    """A small number in words: ``three heads``."""
    word = COUNTED[n] if n < len(COUNTED) else str(n)
    return f"{word} {noun}{'' if n == 1 else 's'}"


def title(asked: Question | None) -> str:
    """The page's title."""
    if asked is None:
        return "Two tasks, three heads, one conflict"
    tasks = counted(asked.config.beyond.n_tasks, "task")
    return f"{tasks[0].upper()}{tasks[1:]}, {counted(asked.config.heads, 'head')}, one conflict"


def introduction(asked: Question) -> str:
    """The line below the title."""
    config = asked.config
    where = ", and gradient descent puts it in one head" if not config.beyond.changes_update else ""
    return (
        f"Task A wants coefficient 0 on the shared feature, task B wants a = {config.a:g}; joint training settles on "
        f"{config.optimum[0]:.4g}{where}. Seed {config.seed}."
    )


def feature_title(asked: Question, feature: int) -> str:
    """What a plot of coefficients shows."""
    config = asked.config
    name, aim = config.feature_names[feature], f"{config.optimum[feature]:.4g}"
    if feature == 0:
        exact = "a/2 = " if config.beyond.n_tasks == 2 and len(set(config.beyond.task_weights)) < 2 else ""
        return f"Shared feature {name} (target {exact}{aim})"
    n_tasks = config.beyond.n_tasks
    task = "A" if feature == 1 else "B" if feature == n_tasks else str(feature)
    return f"Feature {name}, task {task} only (target {'b' if feature == 1 else 'c'} = {aim})"


def feature_says(run: Trajectory, feature: int) -> str:
    """Who won a feature, and what is left to the others."""
    winner = int(run.winners[feature])
    end = run.coefficients[-1, :, feature]
    held = float(end[winner])
    others = [abs(float(c)) for head, c in enumerate(end) if head != winner]
    left = f"; each other head holds at most {value(max(others))}" if others else ""
    if run.diverged:
        return f"Head {winner} has run away with {value(held)}; the target is {run.config.optimum[feature]:.4g}."
    if not decided(run, feature):
        more = "" if run.config.beyond.labels else " More steps finish the race."
        return f"No head holds most of it: head {winner} leads with {value(held)}.{more}"
    return f"Head {winner} won, with {value(held)}{left}."


def decided(run: Trajectory, feature: int) -> bool:
    """Whether some head holds most of a feature at the end."""
    held = float(run.coefficients[-1, run.winners[feature], feature])
    return abs(held) >= 0.5 * float(run.config.optimum[feature])


def run_says(run: Trajectory) -> str:
    """Whether this run is on E, and how the race went."""
    if run.diverged:
        return "A diverged run has no winners."
    names = run.config.feature_names
    waiting = [name for feature, name in enumerate(names) if not decided(run, feature)]
    if waiting:
        names = ", ".join(waiting)
        if run.config.beyond.labels:
            return f"No head holds most of {names} at the last step. Outside the theorems a feature may stay shared."
        return f"The race for {names} is not over at the last step: run it longer, or take another seed. {RACE}"
    won = ", ".join(f"{name}: head {head}" for name, head in zip(names, run.winners, strict=True))
    if bool(in_event(run.winners)):
        on = f"Winners {won}. This run is on event E: head {run.winners[0]} won U and no other feature."
        return on if run.config.beyond.labels else f"{on} {RACE}"
    shared = ", ".join(name for name, head in zip(names[1:], run.winners[1:], strict=True) if head == run.winners[0])
    return f"Winners {won}. Not on event E: head {run.winners[0]} won U and {shared} as well. Another seed may differ."


def risks_say(run: Trajectory, without: int | None) -> str:
    """What the risks' plot shows."""
    end, config = run.risks, run.config
    text = f"Joint training ends with A at {value(float(end.task_a[-1]))} and B at {value(float(end.task_b[-1]))}"
    settled = abs(run.aggregate[-1] - config.optimum).max() < NEAR
    theorems = config.beyond.n_tasks == 2 and not config.beyond.labels
    why = ": both pay t² for the conflict, as at the optimum." if theorems else "."
    text += why if settled else ", and has not converged."
    return text if without is None else f"{text} Dashed: the same run without head {without}."


def population_says(asked: Question, found: PopulationSummary) -> str:
    """What the share of runs on E shows."""
    config = asked.population
    predicted, n = found.pr_event_predicted, max(1, found.n_seeds - found.n_diverged)
    off = (found.pr_event - predicted) / math.sqrt(predicted * (1 - predicted) / n) if 0 < predicted < 1 else 0.0
    power = {2: "²", 3: "³"}.get(config.beyond.n_tasks, f"^{config.beyond.n_tasks}")
    text = (
        f"The theorem: winners are uniform over heads and independent, so that U's winner carries the conflict alone with "
        f"probability (({config.heads}−1)/{config.heads}){power}. Measured: {abs(off):.1f} standard errors "
        f"{'above' if off > 0 else 'below'}."
    )
    missing = f" {formats.percent(1 - found.converged_share)} % of runs have not converged at their last step."
    return text + (missing if found.converged_share < 0.995 else "")


def winners_say(asked: Question, found: PopulationSummary) -> str:
    """What the winners' table should look like."""
    n, heads = found.n_seeds - found.n_diverged, asked.config.heads
    spread = math.sqrt(n * (1 / heads) * (1 - 1 / heads))
    return f"Uniform means {n / heads:,.0f} in each cell, give or take {spread:.0f} (one standard deviation)."


def gains_say(asked: Question, found: PopulationSummary) -> str:
    """What the gains' plot shows."""
    if found.task_a_drop is None or found.task_b_rise is None:
        return "No run is on E: with one head, no head carries the conflict alone."
    t = asked.config.a / 2
    return (
        f"The theorem: without U's winner A's risk falls by t² = {t**2:.4g} and B's rises by 3t² = {3 * t**2:.4g}, up to order "
        f"alpha⁴. Medians of {found.n_event:,} runs on E: {found.task_a_drop.median:.4f} and {found.task_b_rise.median:.4f}."
    )


def scaling_says(points: list[ScalePoint], order: float | None) -> str:
    """What the scaling shows."""
    theorem = "The theorem: losing heads stay of order alpha⁴, so that the points lie along the dashed line of slope 4. "
    usable = [point for point in points if point.loser_median]
    if len(usable) > 1:
        return f"{theorem}Fitted slope: {order_of(usable):.2f}, over {len(usable)} scales of {usable[0].n_seeds:,} runs each."
    if order is not None:
        return f"{theorem}Fitted slope on an earlier visit: {order:.2f}."
    return theorem.strip()


def _raised(number: int) -> str:
    return "".join("⁻" if c == "-" else "⁰¹²³⁴⁵⁶⁷⁸⁹"[int(c)] for c in str(number))
