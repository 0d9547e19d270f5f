"""The dashboard's handle on the process that owns the model.

The process (`cel_core.serving`) is a program of its own, started with this one's interpreter: it runs queued searches and
answers live requests between their batches. The two speak in lines of JSON over its standard input and output. When this
process ends, however it ends, the other reads the end of its input and goes too. When the other one dies (out of memory,
killed), the search it ran is marked failed with the reason, can be resumed, and a new process is started.

What a request produces is in the store; this handle only tells how far it is. No tensor library is loaded here.
"""

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from cel_core.config import SearchConfig
from cel_core.errors import CelError, StoreError
from cel_core.heads import HeadSet
from cel_core.records import Part, Status
from cel_core.store import Store
from cel_core.tasks import find_task

STARTING = "starting"  # what a process that is not ready yet does
MAX_SESSIONS = 1000  # whose newest live request is remembered
STILLBORN = 3  # after so many processes that end at their start, no other is tried
REPLY_S = 120.0  # how long a question may take: a model may have to be loaded first


@dataclass(frozen=True)
class WorkerState:
    """What the worker does now."""

    status: str = "idle"  # idle, loading, running, dead
    search: str | None = None
    model: str = ""
    device: str = ""
    dtype: str = ""
    detail: str = ""


@dataclass(frozen=True)
class LiveState:
    """How far a session's newest live request is, in outcomes."""

    done: int = 0
    total: int = 0
    running: bool = False
    error: str = ""
    request: int = 0  # its number


class Worker:
    """Starts, feeds and watches the process that owns the model; its methods may be called from any thread."""

    def __init__(self, store_path: str | Path) -> None:
        self._store = Store(store_path)
        self._lock = threading.Lock()
        self._state = WorkerState("loading", detail=STARTING)
        self._live: OrderedDict[str, LiveState] = OrderedDict()  # of each session, the newest asked last
        self._live_lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = count(1)
        self._process: subprocess.Popen[str] | None = None
        self._closing = False
        self._n_stillborn = 0  # processes in a row that ended before they were ready
        self._given_up = False

    def start(self) -> None:
        """Start the process."""
        self._state = WorkerState("loading", detail=STARTING)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cel_core.serving", str(self._store.path.resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def close(self) -> None:
        """End the process; a search it runs can be resumed."""
        self._closing = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def state(self) -> WorkerState:
        """What the worker does now."""
        return self._state

    def launch(self, config: SearchConfig) -> str:
        """Queue a new search; its id.

        Raises:
            ConfigError: the task is unknown.
            StoreError: the store cannot be written.
        """
        find_task(config.task)
        search = self._store.create_search(config, {}, Status.QUEUED)
        self._run(search, 0.0)
        return search

    def resume(self, search: str) -> None:
        """Queue a stopped, interrupted or failed search.

        Raises:
            StoreError: there is none of that id, or it cannot be resumed.
        """
        record = self._store.search(search)
        if record.status in (Status.QUEUED, Status.RUNNING, Status.DONE):
            raise StoreError(f"search {record.id} is {record.status}: only a stopped, interrupted or failed one can be resumed")
        self._store.queue(record.id)
        self._run(record.id, record.duration_s)

    def stop(self, search: str) -> None:
        """Stop a queued or running search within one batch; what was evaluated is kept.

        Raises:
            StoreError: there is none of that id.
        """
        self._send({"do": "stop", "search": self._store.search(search).id})

    def live(self, session: str, search: str, part: Part, head_set: HeadSet) -> None:
        """Ask for all outcomes of one head set on one side of a search; the newest request of a session overtakes its older.

        The outcomes appear in the store; `live_state` tells how many are there.
        """
        number = next(self._numbers)
        with self._live_lock:
            self._live[session] = LiveState(running=True, request=number)
            self._live.move_to_end(session)
            while len(self._live) > MAX_SESSIONS:
                self._live.popitem(last=False)
        asked = {"session": session, "request": number, "search": search, "part": str(part), "heads": str(head_set)}
        try:
            self._send({"do": "live"} | asked)
        except CelError:
            with self._live_lock:
                self._live.pop(session, None)
            raise

    def live_state(self, session: str) -> LiveState:
        """How far a session's newest live request is."""
        return self._live.get(session, LiveState())

    def estimate(self, config: SearchConfig) -> dict[str, Any]:
        """What a search would take: the fields of `cel_core.estimate.Estimate`.

        Raises:
            CelError: it could not begin, for the reason given, or the worker is gone.
        """
        return self._ask({"do": "estimate", "config": asdict(config)})

    def answer(self, search: str, text: str, head_set: HeadSet) -> tuple[str, str]:
        """Greedy continuations of any text by a search's model, intact and without the heads.

        Raises:
            CelError: the model cannot answer, or the worker is gone.
        """
        intact, ablated = self._ask({"do": "answer", "search": search, "text": text, "heads": str(head_set)})
        return intact, ablated

    def explain(self, search: str, example: str, head_set: HeadSet) -> dict[str, str]:
        """An example as the model reads it, and what it writes: ``prompt``, ``intact`` and ``ablated``.

        Raises:
            CelError: there is no such example, it is sealed, or the worker is gone.
        """
        return self._ask({"do": "explain", "search": search, "example": example, "heads": str(head_set)})

    def _ask(self, message: dict[str, Any]) -> Any:
        number = next(self._numbers)
        future: Future[Any] = Future()
        self._waiting[number] = future
        try:
            self._send(message | {"id": number})
            return future.result(REPLY_S)
        except TimeoutError as error:
            raise CelError(f"the worker has not answered for {REPLY_S:.0f} s: try again when it is idle") from error
        finally:
            self._waiting.pop(number, None)

    def _run(self, search: str, duration_s: float) -> None:
        """Have a queued search run: by this process, or by the one that follows it, which takes what is queued."""
        try:
            self._send({"do": "run", "search": search})
        except CelError:
            if self._process is None or self._given_up or self._closing:
                self._store.end(search, Status.STOPPED, duration_s)
                raise

    def _send(self, message: dict[str, Any]) -> None:
        process = self._process
        try:
            if process is None or process.stdin is None:
                raise BrokenPipeError
            with self._lock:
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise CelError("the worker is not running: wait a moment, or start the dashboard again") from error

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if "state" in message:
                self._state = WorkerState(**message["state"])
            elif "session" in message:
                session, live = message.pop("session"), LiveState(**message)
                with self._live_lock:
                    if session in self._live and self._live[session].request == live.request:  # not an older one's answer
                        self._live[session] = live
            elif (future := self._waiting.get(message["reply"])) is not None:
                if "error" in message:
                    future.set_exception(CelError(message["error"]))
                else:
                    future.set_result(message["value"])
        self._ended(process.wait())

    def _ended(self, status: int) -> None:
        """The process is gone: say so wherever somebody waits, and start another unless this one was closed."""
        if self._closing:
            return
        reason = (
            f"the worker was killed (signal {-status}); perhaps memory ran out"
            if status < 0
            else f"the worker ended ({status})"
        )
        lost, self._state = self._state, replace(self._state, status="dead", search=None, detail=reason)
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(CelError(f"{reason}: try again"))
        with self._live_lock:
            for session, live in self._live.items():
                if live.running:
                    error = f"{reason}: switch a head, or reload the page, to ask again"
                    self._live[session] = replace(live, running=False, error=error)
        try:
            if lost.search is not None:
                record = self._store.search(lost.search)
                remedy = "resume it to go on from what is stored"
                if record.status is Status.INTERRUPTED:  # it had not ended by itself
                    self._store.end(record.id, Status.FAILED, record.duration_s, f"{reason}; {remedy}")
            self._n_stillborn = self._n_stillborn + 1 if lost.detail == STARTING else 0
            if self._n_stillborn >= STILLBORN:
                self._given_up = True
                return
            self.start()
            for record in reversed(self._store.searches()):
                if record.status is Status.QUEUED:
                    self._send({"do": "run", "search": record.id})
        except CelError as error:
            self._state = replace(self._state, detail=f"{reason}; {error}")


def as_message(state: WorkerState) -> dict[str, Any]:
    """A state as the process sends it."""
    return {"state": asdict(state)}
