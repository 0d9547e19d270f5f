"""What the store's tables hold, and the way between their rows and the program's records.

Functions act inside a transaction that is open already (`cel_core.database`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import pandas as pd

from cel_core import owner
from cel_core.config import Protocol, SearchConfig
from cel_core.database import Connection
from cel_core.errors import SealedError, StoreError
from cel_core.heads import HeadSet
from cel_core.records import HeldOut, Part, SearchRecord, Status
from cel_core.search import Tally
from cel_core.tasks import Example

# outcomes of one part of a search under its protocol; parameters: search, part
OF_PART = """
    SELECT h.name, m.position, o.* FROM search_examples m JOIN searches s ON s.id = m.search
    JOIN outcomes o ON o.protocol = s.protocol AND o.example = m.example JOIN head_sets h ON h.id = o.head_set
    WHERE m.search = ? AND m.part = ?
"""


def examples(database: Connection, search: str, part: Part) -> list[Example]:
    """The examples of one side of a search, in the plan's order."""
    rows = database.execute(
        """SELECT e.task, e.context, e.continuations, e.gold, e.answer, e.kind, e.tests FROM search_examples m
           JOIN examples e ON e.id = m.example WHERE m.search = ? AND m.part = ? ORDER BY m.position""",
        [search, part],
    ).fetchall()
    return [
        Example(task, text, tuple(ways), gold, right, kind, tuple(tests)) for task, text, ways, gold, right, kind, tests in rows
    ]


def insert_record(database: Connection, record: SearchRecord, frozen_at: datetime | None) -> None:
    """Keep a search that rests, without its plan."""
    held_out = record.held_out
    row = {
        "id": record.id,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "owner": owner.this_process(),
        "status": record.status,
        "stage": record.stage,
        "done": record.done,
        "total": record.total,
        "config": json.dumps(asdict(record.config)),
        "model": json.dumps(record.model) if record.model else None,
        "environment": json.dumps(record.environment),
        "n_discovery": record.n_discovery or None,
        "n_held_out": record.n_held_out or None,
        "notes": list(record.notes),
        "error": record.error,
        "duration_s": record.duration_s,
        "frozen_set": None if record.frozen_set is None else str(record.frozen_set),
        "frozen_at": frozen_at,
        "discovery_gain": record.discovery_gain,
        "held_out_intact": held_out and held_out.intact_correct,
        "held_out_ablated": held_out and held_out.ablated_correct,
        "held_out_fixes": held_out and held_out.fixes,
        "held_out_harms": held_out and held_out.harms,
        "token_layers": record.token_layers,
        "plain_token_layers": record.plain_token_layers,
    }
    names, places = ", ".join(row), ", ".join("?" * len(row))
    database.execute(f"INSERT INTO searches ({names}) VALUES ({places})", list(row.values()))


def insert_plan(database: Connection, search: str, protocol: Protocol, sides: dict[Part, list[Example]]) -> None:
    """Keep a search's protocol and examples; what of them is there already stays as it is."""
    columns = ["part", "position", "key", "task", "kind", "context", "continuations", "gold", "answer", "tests"]
    rows = [
        (part, position, e.key, e.task, e.kind, e.context, list(e.continuations), e.gold, e.answer, list(e.tests))
        for part, side in sides.items()
        for position, e in enumerate(side)
    ]
    database.register("new_rows", pd.DataFrame(rows, columns=columns))
    database.execute(
        "INSERT INTO protocols (key, content) VALUES (?, ?) ON CONFLICT DO NOTHING",
        [protocol.key, json.dumps(asdict(protocol))],
    )
    database.execute(
        """INSERT INTO examples (key, task, kind, context, continuations, gold, answer, tests)
           SELECT key, task, kind, context, continuations::TEXT[], gold, answer, tests::TEXT[] FROM new_rows
           ON CONFLICT DO NOTHING"""
    )
    database.execute(
        """INSERT INTO search_examples
           SELECT ?, e.id, r.part, r.position FROM new_rows r JOIN examples e ON e.key = r.key""",
        [search],
    )
    database.execute(
        "UPDATE searches SET protocol = (SELECT id FROM protocols WHERE key = ?) WHERE id = ?", [protocol.key, search]
    )


def insert_outcomes(database: Connection, search: str) -> int:
    """Keep the outcomes registered as new_rows under a search's protocol; the number of those that were not known."""
    database.execute("INSERT INTO head_sets (name) SELECT DISTINCT head_set FROM new_rows ON CONFLICT DO NOTHING")
    return database.execute(
        """INSERT INTO outcomes
           SELECT s.protocol, h.id, e.id, r.correct, r.answer,
                  CASE WHEN isnan(r.margin_nats) THEN NULL ELSE r.margin_nats END, r.logprobs_nats::FLOAT[], r.detail
           FROM new_rows r JOIN head_sets h ON h.name = r.head_set JOIN examples e ON e.key = r.example
           JOIN searches s ON s.id = ? ON CONFLICT DO NOTHING""",
        [search],
    ).fetchall()[0][0]


def insert_ranking(database: Connection, search: str, stage: int, tallies: Sequence[Tally]) -> None:
    """Keep a stage's ranking, best first."""
    rows = pd.DataFrame(
        [
            (search, stage, rank, str(t.head_set), t.fixes, t.harms, t.n_correct, t.n, t.exact)
            for rank, t in enumerate(tallies, start=1)
        ],
        columns=["search", "stage", "rank", "head_set", "fixes", "harms", "n_correct", "n", "exact"],
    )
    database.register("new_rows", rows)
    database.execute("INSERT INTO rankings BY NAME SELECT * FROM new_rows")


def require_unsealed(database: Connection, search: str, part: Part) -> None:
    """Refuse to touch held-out examples before the freeze.

    Raises:
        SealedError: no set is frozen yet.
        StoreError: there is no such search.
    """
    found = database.execute("SELECT frozen_set FROM searches WHERE id = ?", [search]).fetchall()
    if not found:
        raise StoreError(f"there is no search '{search[:40]}': look at the list of searches, and give one id")
    if Part(part) is Part.HELD_OUT and found[0][0] is None:
        raise SealedError(sealed(search))


def sealed(search: str) -> str:
    """Why held-out examples are not to be had, and what to do."""
    return f"search {search}: its held-out examples are sealed until a head set is frozen; let the search finish first"


def record(row: dict[str, Any]) -> SearchRecord:
    """A row of ``searches`` as a record; one whose process is gone is interrupted."""
    status = Status(row["status"])
    if status in (Status.QUEUED, Status.RUNNING) and not owner.is_alive(row["owner"], row["updated_at"]):
        status = Status.INTERRUPTED
    counts = [row[f"held_out_{name}"] for name in ("intact", "ablated", "fixes", "harms")]
    return SearchRecord(
        id=row["id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        status=status,
        stage=row["stage"],
        done=row["done"],
        total=row["total"],
        config=SearchConfig(**json.loads(row["config"])),
        model=json.loads(row["model"] or "{}"),
        environment=json.loads(row["environment"]),
        n_discovery=row["n_discovery"] or 0,
        n_held_out=row["n_held_out"] or 0,
        notes=tuple(row["notes"]),
        error=row["error"],
        duration_s=row["duration_s"],
        frozen_set=None if row["frozen_set"] is None else HeadSet.parse(row["frozen_set"]),
        discovery_gain=row["discovery_gain"],
        token_layers=row["token_layers"],
        plain_token_layers=row["plain_token_layers"],
        held_out=None if counts[0] is None else HeldOut(row["n_held_out"], *counts),
    )
