"""A search as one file that another store takes in: a zip archive of JSON, at most 1 GiB when unpacked.

1. ``manifest.json``: the format and its version, the schema of the store it came from, the search (plan, environment, model,
   notes, frozen set, held-out counts, bill), the protocol in full beside its key, and the number of rows of each table.
2. ``examples.jsonl``: the examples of both sides, one a line, in the plan's order.
3. ``outcomes.jsonl``: one head set on up to 1,000 examples of one side a line; ``positions`` are places in the plan, the other
   columns are as in `cel_core.outcomes`. The held-out side is there once a set is frozen, never before.
4. ``rankings.jsonl``: the rankings of both stages, one head set a line, best first.

A search that runs or waits travels as interrupted or stopped, and can be resumed where its model is found. The consent to run
code that a model writes does not travel, and nothing in the file names a path that would be written. It is read, as a
stranger's, by `cel_core.bundle_reading`.
"""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from cel_core.config import Protocol, SearchConfig
from cel_core.errors import ConfigError, StoreError
from cel_core.migrations import STEPS
from cel_core.records import Part, SearchRecord
from cel_core.search import Tally
from cel_core.tasks import Example

FORMAT, VERSION = "cel search bundle", 1
MEMBERS = ("manifest.json", "examples.jsonl", "outcomes.jsonl", "rankings.jsonl")
MAX_BYTES = 2**30  # of the file, and of all that it unpacks to
MAX_LINE_BYTES = 2**24
BLOCK = 1000  # outcomes a line
CONSENT = "allow_code_execution"  # the one field of a plan that stays at home

OUTCOME_TYPES = {
    "head_set": pa.string(),
    "example": pa.string(),
    "correct": pa.bool_(),
    "answer": pa.string(),
    "margin_nats": pa.float32(),
    "logprobs_nats": pa.list_(pa.float32()),
    "detail": pa.string(),
}
OUTCOMES = pa.schema(list(OUTCOME_TYPES.items()))
COLUMNS = ("correct", "answer", "margin_nats", "logprobs_nats", "detail")  # of a block, beside its positions


@dataclass(frozen=True)
class Bundle:
    """One search with everything that its pages show."""

    record: SearchRecord
    frozen_at: datetime | None
    protocol: Protocol | None  # None where the search had no plan yet, and so no examples
    sides: dict[Part, list[Example]]
    outcomes: pa.Table  # OUTCOMES, each side's head sets one after the other, in the plan's order
    singles: list[Tally]
    subsets: list[Tally]

    def holds(self, other: "Bundle") -> bool:
        """Whether the other is this search, in this state or an earlier one, whatever its id and its outcomes."""
        same = self.record.created_at == other.record.created_at and self._asked == other._asked
        return same and all(not theirs or theirs == ours for ours, theirs in zip(self._found, other._found, strict=True))

    @property
    def n_rows(self) -> dict[str, int]:
        """Rows of each of its tables."""
        n_examples = sum(map(len, self.sides.values()))
        n_ranked = len(self.singles) + len(self.subsets)
        return {"examples": n_examples, "outcomes": self.outcomes.num_rows, "rankings": n_ranked}

    @property
    def _asked(self) -> SearchConfig:
        return replace(self.record.config, allow_code_execution=False)

    @property
    def _found(self) -> tuple[object, ...]:
        """What a search finds on its way; empty or None as long as it has not."""
        plan = [[example.key for example in side] for side in self.sides.values() if side]
        frozen = self.record.frozen_set and (self.record.frozen_set, self.frozen_at)
        return self.protocol, plan, self.singles, self.subsets, frozen, self.record.held_out


class Kept(NamedTuple):
    """What became of a bundle in a store."""

    search: str  # its id here
    was_there: bool
    asked: str  # its id in the bundle
    n_new: int  # outcomes that were not known
    n_other: int  # outcomes known here with the other verdict, which stay

    def __str__(self) -> str:
        if self.was_there:
            news = f"{self.n_new:,} of its outcomes were new" if self.n_new else "nothing changed"
            return f"search {self.search} is here already: {news}"
        said = f"search {self.search} is imported"
        if self.search != self.asked:
            said += f" under a new id: {self.asked} is another search here, or this one in another state"
        said += f", with {self.n_new:,} new outcomes"
        if self.n_other:
            said += f"; {self.n_other:,} were known here with the other verdict and stay so, and its counts do not follow them"
        return said


def file_name(search: str) -> str:
    """What the file of a search is called."""
    return f"cel-search-{search}.zip"


def save(bundle: Bundle, path: Path) -> None:
    """Write a bundle to a file, whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
        StoreError: the search is too large for a bundle.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            write(bundle, file)
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be written ({error.strerror}): give another file") from error
    finally:
        part.unlink(missing_ok=True)


def write(bundle: Bundle, file: IO[bytes]) -> None:
    """Write a bundle; equal bundles are equal bytes.

    Raises:
        StoreError: the search is too large for a bundle.
    """
    contents = {
        "manifest.json": iter([json.dumps(_manifest(bundle), indent=2, ensure_ascii=False)]),
        "examples.jsonl": _example_lines(bundle),
        "outcomes.jsonl": _outcome_lines(bundle),
        "rankings.jsonl": _ranking_lines(bundle),
    }
    n_bytes = 0
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in MEMBERS:
            with archive.open(name, "w") as stream:  # dated 1980, so that the bytes follow from the content
                for line in contents[name]:
                    row = line.encode() + b"\n"
                    n_bytes += len(row)
                    if n_bytes > MAX_BYTES or len(row) > MAX_LINE_BYTES:
                        raise StoreError(f"search {bundle.record.id} is too large for a bundle: copy the store itself")
                    stream.write(row)


def _manifest(bundle: Bundle) -> dict[str, Any]:
    record, protocol = bundle.record, bundle.protocol
    config = {name: value for name, value in asdict(record.config).items() if name != CONSENT}
    search = {
        "id": record.id,
        "created_at": _written_time(record.created_at),
        "updated_at": _written_time(record.updated_at),
        "status": record.status,
        "stage": record.stage,
        "done": record.done,
        "total": record.total,
        "config": config,
        "model": record.model,
        "environment": record.environment,
        "n_discovery": record.n_discovery,
        "n_held_out": record.n_held_out,
        "notes": record.notes,
        "error": record.error,
        "duration_s": record.duration_s,
        "frozen_set": None if record.frozen_set is None else str(record.frozen_set),
        "frozen_at": bundle.frozen_at and _written_time(bundle.frozen_at),
        "discovery_gain": record.discovery_gain,
        "held_out": record.held_out and record.held_out._asdict(),
        "token_layers": record.token_layers,
        "plain_token_layers": record.plain_token_layers,
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "schema": len(STEPS),
        "search": search,
        "protocol": protocol and {"key": protocol.key, "content": asdict(protocol)},
        "rows": bundle.n_rows,
    }


def _written_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _example_lines(bundle: Bundle) -> Iterator[str]:
    for part, side in bundle.sides.items():
        for position, example in enumerate(side):
            row = {name: value for name, value in asdict(example).items() if name != "split"}  # a store keeps no split
            yield _line({"part": part, "position": position} | row)


def _outcome_lines(bundle: Bundle) -> Iterator[str]:
    places = {example.key: (part, number) for part, side in bundle.sides.items() for number, example in enumerate(side)}
    for batch in bundle.outcomes.to_batches(max_chunksize=50 * BLOCK):
        rows, first = batch.to_pydict(), 0
        sides = [places[key][0] for key in rows["example"]]
        positions = [places[key][1] for key in rows["example"]]
        for row in range(1, batch.num_rows + 1):
            here = sides[first], rows["head_set"][first]
            if row < batch.num_rows and row - first < BLOCK and (sides[row], rows["head_set"][row]) == here:
                continue
            block = {name: rows[name][first:row] for name in COLUMNS}
            yield _line({"part": here[0], "head_set": here[1], "positions": positions[first:row]} | block)
            first = row


def _ranking_lines(bundle: Bundle) -> Iterator[str]:
    for stage, tallies in enumerate((bundle.singles, bundle.subsets), start=1):
        for rank, tally in enumerate(tallies, start=1):
            yield _line({"stage": stage, "rank": rank} | tally._asdict() | {"head_set": str(tally.head_set)})
