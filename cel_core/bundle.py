"""A search as one file that another store takes in: a zip archive of JSON, at most 1 GiB when unpacked.

1. ``manifest.json``: the format and its version, the schema of the store it came from, the search (plan, environment, model,
   notes, frozen set, held-out counts, bill), the protocol in full beside its key, and the number of rows of each table.
2. ``examples.jsonl``: the examples of both sides, one a line, in the plan's order.
3. ``outcomes.jsonl``: one head set on up to 1,000 examples of one side a line; ``positions`` are places in the plan, the other
   columns are as in `cel_core.outcomes`. The held-out side is there once a set is frozen, never before.
4. ``rankings.jsonl``: the rankings of both stages, one head set a line, best first.

A search that runs or waits travels as interrupted or stopped, and can be resumed where its model is found. The consent to run
code that a model writes does not travel. What comes in is taken for a stranger's: `read` checks every value, works out keys
and counts anew and refuses what contradicts them, and nothing in the file names a path that would be written.
"""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from cel_core import bundle_checks, untrusted
from cel_core.config import MAX_SUBSETS, Protocol, SearchConfig
from cel_core.errors import CelError, ConfigError, DataError, StoreError
from cel_core.heads import HeadSet
from cel_core.migrations import STEPS
from cel_core.records import HeldOut, Part, SearchRecord, Status
from cel_core.search import Tally
from cel_core.tasks import Example
from cel_core.untrusted import refuse

FORMAT, VERSION = "cel search bundle", 1
MEMBERS = ("manifest.json", "examples.jsonl", "outcomes.jsonl", "rankings.jsonl")
MAX_BYTES = 2**30  # of the file, and of all that it unpacks to
MAX_LINE_BYTES = 2**24
MAX_EXAMPLES = 1_000_000
MAX_WORDS = 2**20  # characters of a prompt, an answer, a program
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
_SEARCH = (
    *("id", "created_at", "updated_at", "status", "stage", "done", "total", "config", "model", "environment"),
    *("n_discovery", "n_held_out", "notes", "error", "duration_s", "frozen_set", "frozen_at", "discovery_gain", "held_out"),
    *("token_layers", "plain_token_layers"),
)
_COLUMNS = ("correct", "answer", "margin_nats", "logprobs_nats", "detail")  # of a block, beside its positions
_KINDS = {"positions": {int}, "correct": {bool}, "answer": {str}, "margin_nats": {float, type(None)}, "detail": {str}}
# what the readers of archives and tables raise where the bytes are not what they should be
_DAMAGED = OSError, EOFError, ValueError, TypeError, ArithmeticError, RuntimeError, zipfile.BadZipFile, zlib.error
_END = struct.Struct("<4s4H2LH")  # the last record of a zip archive
_LARGE = b"PK\6\7"  # stands 20 bytes before it where another record holds the true number of members


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


# --- out --------------------------------------------------------------------------------------------------------------


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
        "rows": _n_rows(bundle),
    }


def _n_rows(bundle: Bundle) -> dict[str, int]:
    n_examples = sum(map(len, bundle.sides.values()))
    return {
        "examples": n_examples,
        "outcomes": bundle.outcomes.num_rows,
        "rankings": len(bundle.singles) + len(bundle.subsets),
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
            block = {name: rows[name][first:row] for name in _COLUMNS}
            yield _line({"part": here[0], "head_set": here[1], "positions": positions[first:row]} | block)
            first = row


def _ranking_lines(bundle: Bundle) -> Iterator[str]:
    for stage, tallies in enumerate((bundle.singles, bundle.subsets), start=1):
        for rank, tally in enumerate(tallies, start=1):
            yield _line({"stage": stage, "rank": rank} | tally._asdict() | {"head_set": str(tally.head_set)})


# --- in ---------------------------------------------------------------------------------------------------------------


def read(path: Path, name: str = "") -> Bundle:
    """A bundle from a file that anybody may have written.

    Args:
        path: the file.
        name: what the user calls it.

    Raises:
        DataError: it is no bundle, damaged, of a newer version, or contradicts itself.
    """
    name = ascii(name or path.name).strip("'\"")[:60]
    try:
        _require_few_members(path)
        with zipfile.ZipFile(path) as archive:
            bundle = _parsed(archive)
        bundle_checks.check(bundle)
        return bundle
    except FileNotFoundError as error:
        raise DataError(f"bundle '{name}' does not exist: check the path") from error
    except CelError as error:
        raise DataError(f"bundle '{name}' cannot be imported: {error}; export the search again where it came from") from error
    except _DAMAGED as error:
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise DataError(f"bundle '{name}' is damaged or no bundle ({reason}): export the search again") from error


def _require_few_members(path: Path) -> None:
    """Refuse, before the list of an archive's members is read, one that is too large, no archive, or has other members."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        refuse(f"it has {size:,} bytes, more than {MAX_BYTES:,}")
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size - 20))
        before, end = file.read(20), file.read()
    if len(end) != _END.size or not end.startswith(b"PK\5\6"):
        refuse("it is no zip archive, or not all of one")
    _, _, _, _, n_members, n_bytes, _, _ = _END.unpack(end)
    if n_members != len(MEMBERS) or n_bytes > 4096 or before.startswith(_LARGE):
        refuse(f"it does not hold {', '.join(MEMBERS)} alone")


def _parsed(archive: zipfile.ZipFile) -> Bundle:
    """The content of an archive, each value checked by itself."""
    if sorted(archive.namelist()) != sorted(MEMBERS):
        refuse(f"it does not hold {', '.join(MEMBERS)} alone")
    if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
        refuse(f"it unpacks to more than {MAX_BYTES:,} bytes")
    with archive.open("manifest.json") as stream:
        manifest = _json(stream.read(MAX_LINE_BYTES + 1))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        refuse("its manifest is not that of a search")
    for each, known in (("version", VERSION), ("schema", len(STEPS))):
        if untrusted.whole(manifest.get(each), each, 1) > known:
            refuse(f"a newer version of this program wrote it ({each} {manifest[each]}, not {known}): update this one")
    untrusted.fields(manifest, "the manifest", ("format", "version", "schema", "search", "protocol", "rows"))
    record, frozen_at = _record(manifest["search"])
    sides = _examples(archive)
    singles, subsets = _rankings(archive)
    outcomes = _outcomes(archive, sides)
    bundle = Bundle(record, frozen_at, _protocol(manifest["protocol"]), sides, outcomes, singles, subsets)
    if manifest["rows"] != _n_rows(bundle):
        refuse(f"its tables have {_n_rows(bundle)} rows, not {untrusted.shown(manifest['rows'])}")
    return bundle


def _json(line: bytes) -> Any:
    if len(line) > MAX_LINE_BYTES:
        refuse(f"it holds a line of more than {MAX_LINE_BYTES:,} bytes")
    try:
        return json.loads(line.decode(), parse_constant=lambda word: refuse(f"it holds the number {word}"))
    except RecursionError:
        refuse("its values are nested too deeply")


def _lines(archive: zipfile.ZipFile, member: str) -> Iterator[Any]:
    with archive.open(member) as stream, io.BufferedReader(stream) as lines:  # type: ignore[arg-type]
        while line := lines.readline(MAX_LINE_BYTES + 1):
            yield _json(line)


def _record(value: object) -> tuple[SearchRecord, datetime | None]:
    found = untrusted.fields(value, "the search", _SEARCH)
    search = untrusted.text(found["id"], "the search's id")
    if len(search) != 6 or set(search) - set("0123456789abcdef"):
        refuse(f"the search's id is {untrusted.shown(search)}, not six digits from 0 to f")
    if found["status"] not in (Status.STOPPED, Status.INTERRUPTED, Status.FAILED, Status.DONE):
        refuse(f"its status is {untrusted.shown(found['status'])}")
    held_out, frozen = found["held_out"], found["frozen_set"]
    record = SearchRecord(
        id=search,
        created_at=untrusted.moment(found["created_at"], "created_at"),
        updated_at=untrusted.moment(found["updated_at"], "updated_at"),
        status=Status(found["status"]),
        stage=untrusted.text(found["stage"], "stage"),
        done=untrusted.whole(found["done"], "done"),
        total=untrusted.whole(found["total"], "total"),
        config=_config(found["config"]),
        model=_facts(found["model"], "the model"),
        environment={key: untrusted.text(each, key) for key, each in _facts(found["environment"], "the environment").items()},
        n_discovery=untrusted.whole(found["n_discovery"], "n_discovery", most=MAX_EXAMPLES),
        n_held_out=untrusted.whole(found["n_held_out"], "n_held_out", most=MAX_EXAMPLES),
        notes=untrusted.texts(found["notes"], "a note"),
        error=untrusted.text(found["error"], "error"),
        duration_s=untrusted.number(found["duration_s"], "duration_s", least=0),
        frozen_set=None if frozen is None else _head_set(frozen),
        discovery_gain=None if found["discovery_gain"] is None else untrusted.number(found["discovery_gain"], "discovery_gain"),
        held_out=None if held_out is None else _held_out(held_out),
        token_layers=untrusted.number(found["token_layers"], "token_layers", least=0),
        plain_token_layers=None
        if found["plain_token_layers"] is None
        else untrusted.number(found["plain_token_layers"], "plain_token_layers", least=0),
    )
    return record, None if found["frozen_at"] is None else untrusted.moment(found["frozen_at"], "frozen_at")


def _config(value: object) -> SearchConfig:
    if isinstance(value, dict):
        if CONSENT in value:
            refuse("it would allow the code that a model writes to run here, which only you can")
        for name, most in (("p", MAX_SUBSETS), ("k", 16)):  # before their subsets are counted
            untrusted.whole(value.get(name), name, 1, most)
    return untrusted.built(SearchConfig, value, "the plan")


def _held_out(value: object) -> HeldOut:
    counts = untrusted.fields(value, "held_out", HeldOut._fields)
    return HeldOut(**{name: untrusted.whole(count, name, most=MAX_EXAMPLES) for name, count in counts.items()})


def _facts(value: object, name: str) -> dict[str, Any]:
    """What is said of a model or an environment: a few names with texts or numbers."""
    if not isinstance(value, dict) or len(value) > 50:
        refuse(f"{name} is {untrusted.shown(value)}, not a few facts")
    for key, fact in value.items():
        untrusted.text(key, name)
        untrusted.text(fact, key) if isinstance(fact, str) else untrusted.number(fact, key)
    return value


def _head_set(value: object) -> HeadSet:
    """A head set in the one way that it is written; "" is the intact model."""
    found = HeadSet.parse(untrusted.text(value, "a head set", most=2**17))
    if str(found) != value:
        refuse(f"the head set {untrusted.shown(value)} is not written as {untrusted.shown(str(found))}")
    return found


def _protocol(value: object) -> Protocol | None:
    """The protocol, whose key is worked out from its content."""
    if value is None:
        return None
    found = untrusted.fields(value, "the protocol", ("key", "content"))
    protocol = untrusted.built(Protocol, found["content"], "the protocol")
    if protocol.key != found["key"]:
        refuse(f"its protocol's content has the key {protocol.key}, not {untrusted.shown(found['key'])}")
    return protocol


def _examples(archive: zipfile.ZipFile) -> dict[Part, list[Example]]:
    """The examples of each side, whose keys are worked out from their content; positions count from 0."""
    sides: dict[Part, list[Example]] = {part: [] for part in Part}
    names = ("part", "position", "key", "task", "context", "continuations", "gold", "answer", "kind", "tests")
    for row in _lines(archive, "examples.jsonl"):
        found = untrusted.fields(row, "an example", names)
        side = sides[_part(found["part"])]
        if found["position"] != len(side) or len(side) >= MAX_EXAMPLES:
            refuse(f"example {len(side)} of a side says that it is {untrusted.shown(found['position'])}")
        example = Example(
            task=untrusted.text(found["task"], "task", most=80),
            context=untrusted.text(found["context"], "context", MAX_WORDS, any_letter=True),
            continuations=untrusted.texts(found["continuations"], "continuations", MAX_WORDS, any_letter=True),
            gold=untrusted.whole(found["gold"], "gold", most=MAX_EXAMPLES),
            answer=untrusted.text(found["answer"], "answer", MAX_WORDS, any_letter=True),
            kind=untrusted.text(found["kind"], "kind", most=80),
            tests=untrusted.texts(found["tests"], "tests", MAX_WORDS, any_letter=True),
        )
        side.append(example)
        if example.key != found["key"]:
            refuse(f"an example's content has the key {example.key}, not {untrusted.shown(found['key'])}")
    return sides


def _part(value: object) -> Part:
    if value not in tuple(Part):
        refuse(f"{untrusted.shown(value)} is no side of a search")
    return Part(value)


def _rankings(archive: zipfile.ZipFile) -> tuple[list[Tally], list[Tally]]:
    rankings: dict[int, list[Tally]] = {1: [], 2: []}
    for row in _lines(archive, "rankings.jsonl"):
        found = untrusted.fields(row, "a ranking", ("stage", "rank", *Tally._fields))
        ranking = rankings[untrusted.whole(found.pop("stage"), "stage", 1, 2)]
        if found.pop("rank") != len(ranking) + 1 or len(ranking) >= MAX_SUBSETS:
            refuse("the ranks of a ranking do not count from 1")
        head_set, exact = _head_set(found.pop("head_set")), found.pop("exact")
        if not isinstance(exact, bool):
            refuse(f"exact is {untrusted.shown(exact)}, not true or false")
        counts = {name: untrusted.whole(count, name, most=MAX_EXAMPLES) for name, count in found.items()}
        ranking.append(Tally(head_set, **counts, exact=exact))
    return rankings[1], rankings[2]


def _outcomes(archive: zipfile.ZipFile, sides: dict[Part, list[Example]]) -> pa.Table:
    """All outcomes as one table, in the order of the file."""
    keys = {part: np.array([example.key for example in side]) for part, side in sides.items()}
    tables, waiting = [OUTCOMES.empty_table()], dict[str, list[Any]]()
    for row in _lines(archive, "outcomes.jsonl"):
        found = untrusted.fields(row, "a block of outcomes", ("part", "head_set", "positions", *_COLUMNS))
        part, name = _part(found["part"]), str(_head_set(found["head_set"]))
        size = _checked_size(found)
        positions = np.array(found["positions"], dtype=np.int64)
        if not size or positions.min() < 0 or positions.max() >= len(keys[part]):
            refuse(f"outcomes without {name or 'a head'} are of no {part} example")
        block = {"head_set": [name] * size, "example": keys[part][positions].tolist()}
        for column, values in (block | {column: found[column] for column in _COLUMNS}).items():
            waiting.setdefault(column, []).extend(values)
        if len(waiting["correct"]) >= 50 * BLOCK:  # a file of many small blocks costs no more than one of few large ones
            tables.append(pa.table(waiting, schema=OUTCOMES))
            waiting = {}
    return pa.concat_tables([*tables, pa.table(waiting, schema=OUTCOMES)] if waiting else tables)


def _checked_size(block: dict[str, Any]) -> int:
    """The number of outcomes of a block, each value of its columns being of the column's type."""
    for column, kinds in _KINDS.items():
        if not isinstance(block[column], list) or not set(map(type, block[column])) <= kinds:
            refuse(f"a block of outcomes holds {column} of another type")
    several = block["logprobs_nats"]
    if not isinstance(several, list) or not all(type(each) is list and set(map(type, each)) <= {float} for each in several):
        refuse("a block of outcomes holds logprobs_nats of another type")
    sizes = {len(block[column]) for column in ("positions", *_COLUMNS)}
    if len(sizes) > 1:
        refuse("the columns of a block of outcomes have different lengths")
    return sizes.pop()
