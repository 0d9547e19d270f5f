"""Choose which examples a search screens on and which it tests on, so that no example is ever on both sides.

1. An example that occurs more than once, by content, is kept once.
2. Where the examples carry official splits, discovery is drawn from the one and the held-out set from the other, and what
   stands in both counts as held-out. Otherwise both are drawn from all of them, disjointly.
3. The draw follows from the seed and the examples alone. Sizes default to the paper's, capped by what is there; sizes that
   are asked for are met or refused.
"""

import random
from dataclasses import dataclass

from cel_core.errors import ConfigError
from cel_core.tasks.base import Example, Task


@dataclass(frozen=True)
class Split:
    """The two disjoint sides of a search; `notes` say what was dropped or capped, for the user to read."""

    discovery: list[Example]
    held_out: list[Example]
    notes: list[str]


def split_examples(
    task: Task, examples: list[Example], n_discovery: int | None = None, n_held_out: int | None = None, seed: int = 0
) -> Split:
    """Draw a discovery and a held-out set.

    Args:
        task: the examples' task.
        examples: all examples at hand.
        n_discovery: examples to screen on; None for the paper's number, or what there is.
        n_held_out: examples to test on; None for the paper's number, or what there is.
        seed: of the draw.

    Raises:
        ConfigError: a size below 1, or larger than what there is.
    """
    for option, asked in (("--discovery", n_discovery), ("--held-out", n_held_out)):
        if asked is not None and asked < 1:
            raise ConfigError(f"{option} {asked}: a search needs at least 1 example on each side")
    held_out_pool = _unique([example for example in examples if example.split in task.held_out_splits])
    held_out_keys = {example.key for example in held_out_pool}
    discovery_pool = _unique(
        [example for example in examples if example.split in task.discovery_splits and example.key not in held_out_keys]
    )
    if discovery_pool and held_out_pool:
        sides = (
            _draw(
                discovery_pool,
                _capped("--discovery", n_discovery, task.paper_sizes.discovery, len(discovery_pool)),
                seed,
            ),
            _draw(held_out_pool, _capped("--held-out", n_held_out, task.paper_sizes.held_out, len(held_out_pool)), seed),
        )
        in_use = [example for example in examples if example.split in task.discovery_splits + task.held_out_splits]
    else:
        pool, in_use = _unique(examples), examples
        sizes = _shared_sizes(task, len(pool), n_discovery, n_held_out)
        mixed = _draw(pool, sum(sizes), seed)
        sides = mixed[: sizes[0]], mixed[sizes[0] :]
    notes = []
    n_unique = len({example.key for example in in_use})
    if n_unique < len(in_use):
        notes.append(f"{len(in_use) - n_unique} of {len(in_use)} rows left out: their content occurs more than once")
    for side, asked, paper, chosen in zip(
        ("discovery", "held-out"), (n_discovery, n_held_out), task.paper_sizes, sides, strict=True
    ):
        if asked is None and len(chosen) < paper:
            notes.append(f"{side}: {len(chosen)} examples, as many as the rows allow (the paper takes {paper:,})")
    return Split(*sides, notes)


def _unique(examples: list[Example]) -> list[Example]:
    return list({example.key: example for example in reversed(examples)}.values())[::-1]


def _draw(examples: list[Example], size: int, seed: int) -> list[Example]:
    # sorted by content, so that the draw does not depend on the order of rows in a file
    return random.Random(seed).sample(sorted(examples, key=lambda example: example.key), size)


def _capped(option: str, asked: int | None, paper: int, there: int) -> int:
    if asked is not None and asked > there:
        raise ConfigError(f"{option} {asked}: only {there} examples can be had; ask for at most {there}")
    return min(paper, there) if asked is None else asked


def _shared_sizes(task: Task, there: int, n_discovery: int | None, n_held_out: int | None) -> tuple[int, int]:
    """Sizes of two sides drawn from one pool; where both are open and the pool is small, it is halved."""
    if there < 2:
        raise ConfigError(f"{there} distinct examples cannot fill a discovery and a held-out set: give more rows")
    paper = task.paper_sizes
    if n_discovery is None and n_held_out is None:
        discovery = min(paper.discovery, max(there // 2, there - paper.held_out))
        return discovery, min(paper.held_out, there - discovery)
    if n_discovery is None:
        held_out = _capped("--held-out", n_held_out, paper.held_out, there - 1)
        return min(paper.discovery, there - held_out), held_out
    discovery = _capped("--discovery", n_discovery, paper.discovery, there - 1)
    return discovery, _capped("--held-out", n_held_out, paper.held_out, there - discovery)
