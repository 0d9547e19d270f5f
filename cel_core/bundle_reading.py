"""Read a search bundle, which anybody may have written: every value checked by itself, then all of them together.

The format is `cel_core.bundle`'s. Keys and counts are worked out anew, and what contradicts them is refused.
"""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cel_core import bundle_checks, untrusted
from cel_core.bundle import BLOCK, COLUMNS, CONSENT, FORMAT, MAX_BYTES, MAX_LINE_BYTES, MEMBERS, OUTCOMES, VERSION, Bundle
from cel_core.config import MAX_SUBSET_HEADS, MAX_SUBSETS, Protocol, SearchConfig
from cel_core.errors import CelError, DataError
from cel_core.heads import HeadSet
from cel_core.migrations import STEPS
from cel_core.records import HeldOut, Part, SearchRecord, Status
from cel_core.search import Tally
from cel_core.tasks import Example
from cel_core.untrusted import refuse

MAX_EXAMPLES = 1_000_000
MAX_WORDS = 2**20  # characters of a prompt, an answer, a program
_SEARCH = (
    *("id", "created_at", "updated_at", "status", "stage", "done", "total", "config", "model", "environment"),
    *("n_discovery", "n_held_out", "notes", "error", "duration_s", "frozen_set", "frozen_at", "discovery_gain", "held_out"),
    *("token_layers", "plain_token_layers"),
)
_KINDS = {"positions": {int}, "correct": {bool}, "answer": {str}, "margin_nats": {float, type(None)}, "detail": {str}}
# what the readers of archives and tables raise where the bytes are not what they should be
_DAMAGED = OSError, EOFError, ValueError, TypeError, ArithmeticError, RuntimeError, zipfile.BadZipFile, zlib.error
_END = struct.Struct("<4s4H2LH")  # the last record of a zip archive
_LARGE = b"PK\6\7"  # stands 20 bytes before it where another record holds the true number of members


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
    if manifest["rows"] != bundle.n_rows:
        refuse(f"its tables have {bundle.n_rows} rows, not {untrusted.shown(manifest['rows'])}")
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
        for name, most in (("p", MAX_SUBSETS), ("k", MAX_SUBSET_HEADS)):  # before their subsets are counted
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
        found = untrusted.fields(row, "a block of outcomes", ("part", "head_set", "positions", *COLUMNS))
        part, name = _part(found["part"]), str(_head_set(found["head_set"]))
        size = _checked_size(found)
        positions = np.array(found["positions"], dtype=np.int64)
        if not size or positions.min() < 0 or positions.max() >= len(keys[part]):
            refuse(f"outcomes without {name or 'a head'} are of no {part} example")
        block = {"head_set": [name] * size, "example": keys[part][positions].tolist()}
        for column, values in (block | {column: found[column] for column in COLUMNS}).items():
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
    sizes = {len(block[column]) for column in ("positions", *COLUMNS)}
    if len(sizes) > 1:
        refuse("the columns of a block of outcomes have different lengths")
    return sizes.pop()
