"""The one place that keeps outcomes.

Outcomes are keyed by content: protocol, head set, example. A search is a plan over them: which examples are discovery and
held-out, and which set was frozen when. Rankings, flips and headlines are queries.

* Every transaction is short, so that many processes take turns with one file (`cel_core.database`).
* Held-out outcomes before the freeze are impossible: whatever is asked or written names a search and one of its parts, and a
  search's held-out part is sealed while its frozen set is empty, whoever made the outcomes. A set is frozen once.
* Toy runs, down-sampled to what a plot shows, and toy populations' figures are keyed by a hash of their settings.
"""

import json
import secrets
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from cel_core import owner, tables
from cel_core.bundle import OUTCOMES, Bundle, Kept
from cel_core.config import Protocol, SearchConfig
from cel_core.database import Database
from cel_core.errors import SealedError, StoreError
from cel_core.heads import INTACT, HeadSet
from cel_core.paths import typed_path
from cel_core.records import Part, SearchRecord, Status
from cel_core.search import Tally
from cel_core.tables import OF_PART
from cel_core.tasks import Example
from cel_core.tasks.split import Split
from cel_core.toy import Method, PopulationSummary, ToyConfig, Trajectory
from cel_core.untrusted import shown

DEFAULT_PATH = Path(__file__).resolve().parent.parent / "data" / "cel.duckdb"


class Store:
    """A handle on one store file; it holds no connection between calls and may be used from any thread."""

    def __init__(self, path: str | Path = DEFAULT_PATH, patience_s: float = 30.0) -> None:
        """Open a store, making or migrating it where needed.

        Args:
            path: the DuckDB file.
            patience_s: how long to wait for a file that another process holds.

        Raises:
            StoreError: it cannot be opened or written, or a newer version of this program wrote it.
        """
        self.path = typed_path(str(path))
        self._database = Database(self.path, patience_s)
        self._saving_toy = threading.Lock()  # two page threads may save the same toy run, and its key is unique
        self._importing = threading.Lock()  # two page threads may import the same search

    def together(self) -> AbstractContextManager[None]:
        """Inside, this thread's calls share one opening of the file: for a page that asks much at once, briefly."""
        return self._database.together()

    # --- searches -----------------------------------------------------------------------------------------------------

    def create_search(self, config: SearchConfig, environment: dict[str, str], status: Status = Status.RUNNING) -> str:
        """A new search, owned by this process, running or queued; its plan follows once model and rows are read."""
        search = secrets.token_hex(3)
        now = datetime.now(UTC)
        with self._database.transaction() as database:
            database.execute(
                """INSERT INTO searches (id, created_at, updated_at, owner, status, stage, done, total, config, environment,
                   notes, error, duration_s) VALUES (?, ?, ?, ?, ?, 'loading', 0, 0, ?, ?, [], '', 0)""",
                [search, now, now, owner.this_process(), status, json.dumps(asdict(config)), json.dumps(environment)],
            )
        return search

    def claim(self, search: str, environment: dict[str, str]) -> SearchRecord:
        """Take over a search that is not running, to go on with it in this process and environment.

        Raises:
            StoreError: there is none of that id, it is done, or another process runs it.
        """
        record = self.search(search)
        if record.status in (Status.RUNNING, Status.DONE):
            raise StoreError(f"search {search} is {record.status}: only a stopped, interrupted or failed search can be resumed")
        with self._database.transaction() as database:
            taken = database.execute(
                """UPDATE searches SET status = 'running', owner = ?, environment = ?, error = '', updated_at = ?
                   WHERE id = ? AND updated_at = ? RETURNING id""",
                [owner.this_process(), json.dumps(environment), datetime.now(UTC), record.id, record.updated_at],
            ).fetchall()
        if not taken:
            raise StoreError(f"search {record.id} has just been taken up by another process: look at it there")
        return self.search(record.id)

    def queue(self, search: str) -> None:
        """Put a search that does not run in line again."""
        with self._database.transaction() as database:
            database.execute(
                "UPDATE searches SET status = 'queued', owner = ?, error = '', updated_at = ? WHERE id = ?",
                [owner.this_process(), datetime.now(UTC), search],
            )

    def plan(self, search: str, protocol: Protocol, model: dict[str, Any], split: Split) -> None:
        """Fix a search's protocol and its two sides.

        Raises:
            StoreError: it has a plan already, and not this one.
        """
        record = self.search(search)
        if record.n_discovery:
            if self.protocol_key(search) != protocol.key:
                raise StoreError(f"search {search} was begun with another model, dtype or task version: start a new search")
            return
        with self._database.transaction() as database:
            tables.insert_plan(database, search, protocol, {Part.DISCOVERY: split.discovery, Part.HELD_OUT: split.held_out})
            database.execute(
                "UPDATE searches SET model = ?, n_discovery = ?, n_held_out = ?, notes = ? WHERE id = ?",
                [json.dumps(model), len(split.discovery), len(split.held_out), split.notes, search],
            )

    def protocol_key(self, search: str) -> str | None:
        """Identifies the protocol a search was planned under; None before its plan."""
        with self._database.transaction() as database:
            found = database.execute(
                "SELECT p.key FROM searches s JOIN protocols p ON p.id = s.protocol WHERE s.id = ?", [search]
            ).fetchall()
        return found[0][0] if found else None

    def progress(self, search: str, stage: str, done: int, total: int, duration_s: float, token_layers: float = 0.0) -> None:
        """Say how far a running search is, and add what it ran since to its bill; this is also its sign of life."""
        with self._database.transaction() as database:
            database.execute(
                """UPDATE searches SET stage = ?, done = ?, total = ?, duration_s = ?, token_layers = token_layers + ?,
                   updated_at = ? WHERE id = ?""",
                [stage, done, total, duration_s, token_layers, datetime.now(UTC), search],
            )

    def end(self, search: str, status: Status, duration_s: float, error: str = "") -> None:
        """Close a run: done, stopped or failed, with the reason."""
        with self._database.transaction() as database:
            database.execute(
                "UPDATE searches SET status = ?, error = ?, duration_s = ?, updated_at = ? WHERE id = ?",
                [status, error, duration_s, datetime.now(UTC), search],
            )

    def search(self, search: str) -> SearchRecord:
        """One search by its id, or by the beginning of it.

        Raises:
            StoreError: none or several fit.
        """
        found = self._records("WHERE starts_with(id, ?)", [search]) if search.isprintable() and search else []
        if len(found) != 1:
            problem = f"{len(found)} searches start with" if found else "there is no search"
            raise StoreError(f"{problem} {shown(search)}: look at the list of searches, and give one id")
        return found[0]

    def searches(self) -> list[SearchRecord]:
        """All searches, newest first."""
        return self._records("", [])

    # --- rankings and the freeze --------------------------------------------------------------------------------------

    def save_ranking(self, search: str, stage: int, tallies: Sequence[Tally]) -> None:
        """Keep the ranking of a stage (1: single heads, 2: subsets), best first."""
        with self._database.transaction() as database:
            database.execute("DELETE FROM rankings WHERE search = ? AND stage = ?", [search, stage])
            tables.insert_ranking(database, search, stage, tallies)

    def ranking(self, search: str, stage: int) -> list[Tally]:
        """The ranking of a stage, best first; empty until the stage is done."""
        with self._database.transaction() as database:
            rows = database.execute(
                "SELECT head_set, fixes, harms, n_correct, n, exact FROM rankings WHERE search = ? AND stage = ? ORDER BY rank",
                [search, stage],
            ).fetchall()
        return [Tally(HeadSet.parse(name), *counts) for name, *counts in rows]

    def freeze(self, search: str, head_set: HeadSet, discovery_gain: float) -> None:
        """Freeze the set that the held-out examples will test; this unseals them.

        Raises:
            StoreError: another set is frozen already, or the set's discovery outcomes are not all there.
        """
        with self._database.transaction() as database:
            frozen, n_discovery = database.execute(
                "SELECT frozen_set, n_discovery FROM searches WHERE id = ?", [search]
            ).fetchall()[0]
            if frozen is not None:
                if frozen == str(head_set):
                    return
                raise StoreError(f"search {search} has frozen {frozen}: a set is frozen once; start a new search")
            n_known = database.execute(
                f"SELECT count(*) FROM ({OF_PART}) WHERE name = ?", [search, Part.DISCOVERY, str(head_set)]
            ).fetchall()[0][0]
            if not n_discovery or not head_set or n_known < n_discovery:
                raise StoreError(
                    f"search {search}: {head_set or 'the empty set'} has {n_known} of {n_discovery or 0} discovery outcomes; "
                    "a set is frozen when all are there"
                )
            database.execute(
                "UPDATE searches SET frozen_set = ?, frozen_at = ?, discovery_gain = ? WHERE id = ?",
                [str(head_set), datetime.now(UTC), discovery_gain, search],
            )

    def save_held_out(self, search: str, plain_token_layers: float | None = None) -> None:
        """Count the held-out comparison of the frozen set and keep it with the search, and what the plain way would cost."""
        record = self.search(search)
        if record.frozen_set is None:
            raise SealedError(tables.sealed(search))
        flips = self.paired(search, Part.HELD_OUT, record.frozen_set)
        if len(flips) < record.n_held_out:
            raise StoreError(f"search {search}: {len(flips)} of {record.n_held_out} held-out outcomes are there; resume it")
        intact, ablated = flips["intact_correct"].to_numpy(bool), flips["ablated_correct"].to_numpy(bool)
        counts = [int(x.sum()) for x in (intact, ablated, ~intact & ablated, intact & ~ablated)]
        with self._database.transaction() as database:
            database.execute(
                """UPDATE searches SET held_out_intact = ?, held_out_ablated = ?, held_out_fixes = ?, held_out_harms = ?,
                   plain_token_layers = ? WHERE id = ?""",
                [*counts, plain_token_layers, search],
            )

    # --- examples and outcomes of one part of a search ----------------------------------------------------------------

    def examples(self, search: str, part: Part) -> list[Example]:
        """The examples of one side, in the plan's order."""
        with self._database.transaction() as database:
            tables.require_unsealed(database, search, part)
            return tables.examples(database, search, part)

    def add_outcomes(self, search: str, part: Part, outcomes: pa.Table | pd.DataFrame) -> None:
        """Keep outcomes (the columns of `cel_core.outcomes`) of examples of one side; what is known stays as it is.

        Raises:
            SealedError: they are of held-out examples, and nothing is frozen yet.
            StoreError: one is of an example outside this side.
        """
        with self._database.transaction() as database:
            tables.require_unsealed(database, search, part)
            database.register("new_rows", outcomes)
            outside = database.execute(
                """SELECT count(*) FROM new_rows r WHERE NOT EXISTS (SELECT 1 FROM search_examples m JOIN examples e
                   ON e.id = m.example WHERE m.search = ? AND m.part = ? AND e.key = r.example)""",
                [search, part],
            ).fetchall()[0][0]
            if outside:
                raise StoreError(f"search {search}: {outside} outcomes are not of its {part} examples, and are not kept")
            tables.insert_outcomes(database, search)

    def known(
        self, search: str, part: Part, head_sets: Sequence[HeadSet] | None = None
    ) -> dict[HeadSet, tuple[np.ndarray, np.ndarray]]:
        """What is known of one side's examples under the search's protocol, whichever search made it.

        Args:
            search: the search.
            part: its side.
            head_sets: the sets asked for; None for all.

        Returns:
            For each head set, positions of examples in the plan's order and whether each was answered right.
        """
        with self._database.transaction() as database:
            tables.require_unsealed(database, search, part)
            names = None if head_sets is None else list(map(str, head_sets))
            found = database.execute(
                f"SELECT name, position, correct FROM ({OF_PART}) WHERE ?::TEXT[] IS NULL OR list_contains(?::TEXT[], name)",
                [search, part, names, names],
            ).df()
        return {
            HeadSet.parse(str(name)): (rows["position"].to_numpy(), rows["correct"].to_numpy(bool))
            for name, rows in found.groupby("name", sort=False)
        }

    def tallies(self, search: str, part: Part) -> pd.DataFrame:
        """Fixes, harms and the number of examples known, for every set beside the intact model: head_set, fixes, harms, n."""
        with self._database.transaction() as database:
            tables.require_unsealed(database, search, part)
            return database.execute(
                f"""WITH intact AS (SELECT protocol, example, correct FROM ({OF_PART}) WHERE name = ''),
                    counted AS (
                        SELECT o.head_set, count_if(o.correct AND NOT i.correct) AS fixes,
                               count_if(i.correct AND NOT o.correct) AS harms, count(*) AS n
                        FROM outcomes o JOIN intact i ON i.protocol = o.protocol AND i.example = o.example GROUP BY o.head_set)
                    SELECT h.name AS head_set, c.fixes, c.harms, c.n FROM counted c JOIN head_sets h ON h.id = c.head_set
                    WHERE h.name <> '' ORDER BY h.name""",
                [search, part],
            ).df()

    def judged(self, search: str, part: Part, head_set: HeadSet) -> pd.DataFrame:
        """What `paired` gives, without texts, for counting: position, intact_correct, ablated_correct."""
        with self._database.transaction() as database:
            tables.require_unsealed(database, search, part)
            return database.execute(
                f"""WITH seen AS ({OF_PART})
                    SELECT a.position, i.correct AS intact_correct, a.correct AS ablated_correct
                    FROM seen a JOIN seen i USING (position) WHERE a.name = ? AND i.name = '' ORDER BY a.position""",
                [search, part, str(head_set or INTACT)],
            ).df()

    def paired(
        self, search: str, part: Part, head_set: HeadSet, positions: Sequence[int] | None = None, key: str = ""
    ) -> pd.DataFrame:
        """Every example of one side whose outcome is known intact and without `head_set`, in the plan's order.

        Args:
            search: the search.
            part: its side.
            head_set: the heads that are off.
            positions: of the examples wanted, in the plan's order; None for all.
            key: one more that is wanted, by its key.

        Returns:
            position, key, kind, context, continuations, gold, answer, tests, and for both models (``intact_``, ``ablated_``):
            correct, answer, margin_nats, logprobs_nats, detail.
        """
        wanted = "" if positions is None else "AND a.position IN (SELECT unnest(?::INTEGER[]))"
        with self._database.transaction() as database:
            tables.require_unsealed(database, search, part)
            asked = []
            if positions is not None:
                named = database.execute(
                    """SELECT m.position FROM search_examples m JOIN examples e ON e.id = m.example
                       WHERE m.search = ? AND m.part = ? AND e.key = ?""",
                    [search, part, key],
                ).fetchall()
                asked = [[*positions, *(position for (position,) in named)]]
            return database.execute(
                f"""WITH seen AS ({OF_PART})
                    SELECT a.position, e.key, e.kind, e.context, e.continuations, e.gold, e.answer, e.tests,
                           i.correct AS intact_correct, a.correct AS ablated_correct,
                           i.answer AS intact_answer, a.answer AS ablated_answer,
                           i.margin_nats AS intact_margin_nats, a.margin_nats AS ablated_margin_nats,
                           i.logprobs_nats AS intact_logprobs_nats, a.logprobs_nats AS ablated_logprobs_nats,
                           i.detail AS intact_detail, a.detail AS ablated_detail
                    FROM seen a JOIN seen i USING (position) JOIN examples e ON e.id = a.example
                    WHERE a.name = ? AND i.name = '' {wanted} ORDER BY a.position""",
                [search, part, str(head_set or INTACT), *asked],
            ).df()

    # --- a search as a file -------------------------------------------------------------------------------------------

    def bundle(self, search: str, outcomes: bool = True) -> Bundle:
        """A search with everything its pages show, to be carried away; held-out outcomes only once its set is frozen.

        Args:
            search: the search.
            outcomes: whether its outcomes are wanted too.

        Raises:
            StoreError: there is none of that id.
        """
        with self._database.transaction() as database:
            record = self.search(search)
            rest = {Status.RUNNING: Status.INTERRUPTED, Status.QUEUED: Status.STOPPED}  # its process stays here
            record = replace(record, status=rest.get(record.status, record.status))
            frozen_at, protocol = database.execute(
                "SELECT s.frozen_at, p.content FROM searches s LEFT JOIN protocols p ON p.id = s.protocol WHERE s.id = ?",
                [record.id],
            ).fetchall()[0]
            parts = list(Part) if outcomes and record.frozen_set else [Part.DISCOVERY] if outcomes else []
            found = [
                database.sql(
                    f"""SELECT name AS head_set, e.key AS example, correct, o.answer, margin_nats, logprobs_nats, detail
                        FROM ({OF_PART}) o JOIN examples e ON e.id = o.example ORDER BY name, position""",
                    params=[record.id, part],
                ).to_arrow_table()
                for part in parts
            ]
            return Bundle(
                record,
                frozen_at,
                None if protocol is None else Protocol(**json.loads(protocol)),
                {part: tables.examples(database, record.id, part) for part in Part},
                pa.concat_tables([OUTCOMES.empty_table(), *(table.cast(OUTCOMES) for table in found)]),
                self.ranking(record.id, 1),
                self.ranking(record.id, 2),
            )

    def keep(self, bundle: Bundle) -> Kept:
        """Take in a search from elsewhere, all of it or nothing; what is known here stays as it is.

        A search that is here already, in the same state or a later one, only gains outcomes; one that is further than here, or
        whose id another search has, gets a new id.

        Args:
            bundle: the search, as `cel_core.bundle_reading.read` checked it.
        """
        record = bundle.record
        with self._importing, self.together():
            for twin in self._records("WHERE created_at = ?", [record.created_at]):
                if self.bundle(twin.id, outcomes=False).holds(bundle):
                    with self._database.transaction() as database:
                        database.register("new_rows", bundle.outcomes)
                        return Kept(twin.id, True, record.id, tables.insert_outcomes(database, twin.id), 0)
            taken = {each.id for each in self.searches()}
            search = record.id
            while search in taken:
                search = secrets.token_hex(3)
            with self._database.transaction() as database:
                tables.insert_record(database, replace(record, id=search), bundle.frozen_at)
                if bundle.protocol is not None:
                    tables.insert_plan(database, search, bundle.protocol, bundle.sides)
                database.register("new_rows", bundle.outcomes)
                n_other = database.execute(
                    """SELECT count(*) FROM new_rows r JOIN head_sets h ON h.name = r.head_set
                       JOIN examples e ON e.key = r.example JOIN searches s ON s.id = ?
                       JOIN outcomes o ON o.protocol = s.protocol AND o.head_set = h.id AND o.example = e.id
                       WHERE o.correct <> r.correct""",
                    [search],
                ).fetchall()[0][0]
                n_new = tables.insert_outcomes(database, search)
                for stage, tallies in ((1, bundle.singles), (2, bundle.subsets)):
                    tables.insert_ranking(database, search, stage, tallies)
            return Kept(search, False, record.id, n_new, n_other)

    def allow_code_execution(self, search: str) -> None:
        """Let the programs that a search's model writes run on this machine: a consent that no bundle brings along."""
        record = self.search(search)
        with self._database.transaction() as database:
            config = replace(record.config, allow_code_execution=True)
            database.execute("UPDATE searches SET config = ? WHERE id = ?", [json.dumps(asdict(config)), record.id])

    # --- the toy model ------------------------------------------------------------------------------------------------

    def save_toy_run(self, run: Trajectory) -> None:
        """Keep a toy run as recorded; one that is kept already stays as it is."""
        key, n_points = run.config.key(run.method), len(run.steps)
        points = pd.DataFrame({"step": run.steps, "coefficients": list(run.coefficients.reshape(n_points, -1))})
        with self._saving_toy, self._database.transaction() as database:
            new = database.execute(
                "INSERT INTO toy_runs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING key",
                [key, run.method, json.dumps(asdict(run.config)), datetime.now(UTC), run.converged, run.diverged_by],
            ).fetchall()
            if new:
                database.register("new_rows", points)
                database.execute("INSERT INTO toy_points SELECT ?, step, coefficients FROM new_rows", [key])

    def toy_run(self, config: ToyConfig, method: Method = "descent") -> Trajectory | None:
        """The toy run of these very settings, where it is kept."""
        key = config.key(method)
        with self._database.transaction() as database:
            ends = database.execute("SELECT converged, diverged_by FROM toy_runs WHERE key = ?", [key]).fetchall()
            points = database.execute("SELECT step, coefficients FROM toy_points WHERE run = ? ORDER BY step", [key]).fetchall()
        if not ends:
            return None
        steps, states = zip(*points, strict=True)
        coefficients = np.reshape(states, (len(steps), config.heads, config.n_features))
        return Trajectory(config, method, np.asarray(steps), coefficients, *ends[0])

    def save_toy_summary(self, config: ToyConfig, summary: PopulationSummary) -> None:
        """Keep a toy population's figures, in place of earlier ones of the same settings and number of seeds."""
        content = [json.dumps(asdict(each)) for each in (config, summary)]
        with self._saving_toy, self._database.transaction() as database:
            database.execute(
                "INSERT OR REPLACE INTO toy_populations (key, n_seeds, created_at, config, summary) VALUES (?, ?, ?, ?, ?)",
                [config.key(summary.n_seeds), summary.n_seeds, datetime.now(UTC), *content],
            )

    def toy_summary(self, config: ToyConfig, n_seeds: int) -> PopulationSummary | None:
        """The figures of the toy population of these very settings, where they are kept."""
        with self._database.transaction() as database:
            found = database.execute("SELECT summary FROM toy_populations WHERE key = ?", [config.key(n_seeds)]).fetchall()
        return PopulationSummary.from_plain(json.loads(found[0][0])) if found else None

    def _records(self, where: str, parameters: list[Any]) -> list[SearchRecord]:
        with self._database.transaction() as database:
            rows = database.execute(f"SELECT * FROM searches {where} ORDER BY created_at DESC, id", parameters)
            names = [column[0] for column in rows.description]
            found = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
        return [tables.record(row) for row in found]
