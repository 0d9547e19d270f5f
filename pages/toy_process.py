"""A process that computes for the toy page: started by `toy_jobs`, one a job, so that the dashboard's own clicks stay quick.

It reads one pickled request, (kind, arguments), from its standard input and writes pickled messages (what, value) to its
standard output: a "share" done, a "row" found, a "problem" of the user's in one line, and at last "done". It gives way to
everything else on the machine, writes nothing else anywhere, and ends when its input ends: with its job, or with the dashboard.
"""

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cel_core.errors import CelError
from cel_core.toy import (
    Axis,
    Method,
    PhaseCell,
    PopulationSummary,
    Progress,
    ScalePoint,
    ToyConfig,
    Trajectory,
    phase_map,
    populate,
    run,
    scaling,
)

NICENESS = 5
REPORT_S = 0.1  # between two messages about the share done


def _run(report: Progress, config: ToyConfig, method: Method) -> Iterator[Trajectory]:
    yield run(config, method)


def _population(report: Progress, config: ToyConfig, n_seeds: int) -> Iterator[PopulationSummary]:
    yield populate(config, n_seeds, report).summary()


def _scaling(report: Progress, config: ToyConfig, alphas: Sequence[float], n_seeds: int) -> Iterator[ScalePoint]:
    weights = [alpha**-2 for alpha in alphas]  # a small scale takes far longer than a large one

    def weighted(share: float) -> None:
        number = min(int(share * len(alphas)), len(alphas) - 1)
        within = share * len(alphas) - number
        report((sum(weights[:number]) + within * weights[number]) / sum(weights))

    return scaling(config, alphas, n_seeds, weighted)


def _map(report: Progress, config: ToyConfig, x: Axis, y: Axis, n_seeds: int, costs: Sequence[float]) -> Iterator[PhaseCell]:
    for number, cell in enumerate(phase_map(config, x, y, n_seeds), start=1):
        yield cell
        report(sum(costs[:number]) / sum(costs))


WORKS: dict[str, Callable[..., Iterator[Any]]] = {"run": _run, "population": _population, "scaling": _scaling, "map": _map}


def _end_with_input() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing comes but the end
    os._exit(0)


def main() -> None:
    """Compute what the one request asks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the dashboard
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    kind, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_input, daemon=True).start()
    told_s = 0.0

    def tell(what: str, value: object) -> None:
        pickle.dump((what, value), sys.stdout.buffer)
        sys.stdout.buffer.flush()

    def report(share: float) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= REPORT_S:
            told_s = now_s
            tell("share", share)

    try:
        for row in WORKS[kind](report, *arguments):
            tell("row", row)
        tell("done", None)
    except CelError as error:
        tell("problem", str(error))


if __name__ == "__main__":
    main()
