"""``python -m cel_core toy``: a population of toy runs against the theorems' predictions.

1. Train the runs to the step asked for: how often E happens, and what deleting the conflict feature's winner does on E.
2. Fit the order of the losing heads on runs of their own, trained until they converge.
3. Print both beside the predictions, as a table or as one JSON object.

Not covered: the switches outside the theorems, single runs and the phase map, which are the toy page's.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from cel_core.errors import ToyError
from cel_core.printing import percent, table
from cel_core.toy.config import ToyConfig
from cel_core.toy.population import Population, PopulationSummary, Spread, loser_order, populate
from cel_core.toy.training import Progress

SETTINGS = ("a", "b", "c", "alpha", "eta", "heads", "steps")
PREDICTED_ORDER = 4
QUIET_S = 0.3
"""No progress bar for less: bad input fails at once, with its one line alone."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command, and what it runs."""
    parser.set_defaults(run=command)
    usual = ToyConfig()
    parser.add_argument("--alpha", type=float, default=usual.alpha, help="scale of the start (default: %(default)g)")
    parser.add_argument("--eta", type=float, default=usual.eta, help="step of gradient descent (default: %(default)g)")
    parser.add_argument("--seeds", type=int, default=4000, metavar="N", help="runs (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=usual.seed, metavar="S", help="of consecutive ones (default: 0)")
    parser.add_argument("--heads", type=int, default=usual.heads, metavar="M", help="heads (default: %(default)s)")
    parser.add_argument("--a", type=float, default=usual.a, help="task B's aim for the conflict (default: %(default)g)")
    parser.add_argument("--b", type=float, default=usual.b, help="task A's aim for its own feature (default: %(default)g)")
    parser.add_argument("--c", type=float, default=usual.c, help="task B's aim for its own feature (default: %(default)g)")
    parser.add_argument(
        "--steps",
        type=_steps,
        default=usual.steps,
        metavar="N|checkpoint|converged",
        help="how long each run is (default: %(default)s, which is ceil(log(1/alpha) / (eta alpha^2)) steps)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _steps(text: str) -> int | str:
    """A number, or a word for the configuration to judge."""
    try:
        return int(text)
    except ValueError:
        return text


def command(chosen: argparse.Namespace) -> None:
    """Run it.

    Raises:
        ToyError: the settings are no model, or every run diverged.
    """
    began = time.perf_counter()
    config = ToyConfig(**{name: getattr(chosen, name) for name in SETTINGS}, seed=chosen.first_seed)
    with _bar("runs") as progress:
        runs = populate(config, chosen.seeds, progress)
    notes = list(_divergence(runs))
    order = None
    try:
        with _bar("order of the losers") as progress:
            order = loser_order(config, progress=progress)
    except ToyError as error:
        notes.append(f"order of the losing heads not measured: {error}")
    summary, duration_s = runs.summary(order), time.perf_counter() - began
    if chosen.json:
        print(json.dumps(_plain(config, summary, notes, duration_s), allow_nan=False))
    else:
        print(_report(config, summary, notes, duration_s))


def _divergence(runs: Population) -> Iterator[str]:
    n_seeds, n_diverged = len(runs.steps), int(runs.diverged.sum())
    if n_diverged == n_seeds:
        eta = runs.config.eta
        raise ToyError(f"eta {eta:g} makes every one of {n_seeds:,} runs diverge: choose less, such as {eta / 10:.2g}")
    if n_diverged:
        yield f"{n_diverged:,} of {n_seeds:,} runs diverged and are left out: a smaller eta or alpha avoids it"


def _plain(config: ToyConfig, summary: PopulationSummary, notes: list[str], duration_s: float) -> dict[str, Any]:
    settings = {name: getattr(config, name) for name in SETTINGS}
    more = {
        "checkpoint": config.checkpoint,
        "first_seed": config.seed,
        "features": config.feature_names,
        "loser_order_predicted": PREDICTED_ORDER,
        "notes": notes,
        "duration_s": round(duration_s, 3),
    }
    return settings | asdict(summary) | more


def _report(config: ToyConfig, summary: PopulationSummary, notes: list[str], duration_s: float) -> str:
    words = {"checkpoint": f"to the checkpoint ({config.checkpoint:,} steps)", "converged": "until they converge"}
    length = f"for {config.steps:,} steps" if isinstance(config.steps, int) else words[config.steps]
    spreads = {"R_A drops by": summary.task_a_drop, "R_B rises by": summary.task_b_rise, "J rises by": summary.joint_rise}
    won = zip(*summary.winners_table, strict=True)  # n_heads, n_features
    order = "not measured" if summary.loser_order is None else f"{summary.loser_order:.3f}"
    lines = [
        f"{summary.n_seeds:,} runs of {config.heads} heads {length}, a = {config.a:g}, b = {config.b:g}, c = {config.c:g}, "
        f"alpha = {config.alpha:g}, eta = {config.eta:g}; {duration_s:.1f} s",
        *(f"note: {note}" for note in notes),
        "",
        "event E: the conflict feature's winner wins no other feature",
        f"  Pr(E) = {summary.pr_event:.4f}, standard error {summary.pr_event_se:.4f}, "
        f"predicted {summary.pr_event_predicted:.4f}",
        "",
        f"on E, without that head ({summary.n_event:,} runs)",
        table(["", "quartile 1", "median", "quartile 3", "predicted"], [_row(*spread) for spread in spreads.items()]),
        "",
        "runs in which a head won a feature",
        table(["", *config.feature_names], [[f"head {head}", *map(str, row)] for head, row in enumerate(won)]),
        "",
        f"converged (every feature within {summary.converged_within:g} of its optimum): {percent(summary.converged_share)} %",
        f"losing heads, median sum: {summary.loser_median:.3g}, which is {summary.loser_over_alpha4:.3f} alpha^4",
        f"order of the losing heads in alpha: {order}, predicted {PREDICTED_ORDER}",
    ]
    return "\n".join(lines)


def _row(name: str, spread: Spread | None) -> list[str]:
    values = (spread.q1, spread.median, spread.q3, spread.predicted) if spread else ()
    return [name, *(f"{value:.4f}" for value in values)] if spread else [name, *"----"]


@contextmanager
def _bar(stage: str) -> Iterator[Progress]:
    """A progress bar on standard error with the time left, told the share done."""
    layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(total=1.0, desc=stage, bar_format=layout, file=sys.stderr, delay=QUIET_S) as bar:

        def report(share: float) -> None:
            bar.update(share - bar.n)

        yield report
