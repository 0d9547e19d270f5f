"""The process that owns the model: runs queued searches, and answers live requests between their batches.

``python -m cel_core.serving STORE`` reads one JSON object a line from standard input and writes its state and replies, one a
line, to standard output (see `cel_core.worker`, which starts it). It ends when its input ends.

One thread listens; the main thread does all the work. A search reports after every batch, and there everything that cannot
wait is done: a stop, a live request (newest of each session), a question. So a toggle never waits behind a search, and a
newer toggle overtakes an older one after the chunk it is in.
"""

import json
import os
import signal
import sys
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, TextIO

from cel_core import experiment, generation
from cel_core.config import SearchConfig
from cel_core.errors import CelError
from cel_core.estimate import estimate
from cel_core.evaluation import Evaluator
from cel_core.heads import INTACT, HeadSet
from cel_core.models import Model
from cel_core.outcomes import as_table
from cel_core.prompts import encode
from cel_core.records import Part, SearchRecord
from cel_core.store import Store
from cel_core.tasks import Example, Scoring, find_task
from cel_core.worker import WorkerState, as_message

NICENESS = 5  # a search gives way to the pages that follow it
CHUNK = 32  # examples of a live request evaluated before somebody else's turn, to begin with
CHUNK_S = 0.4  # how long such a turn should take: chunks grow and shrink towards it
N_MODELS = 2  # kept in memory: a search's, and that of a page looking at another search
MAX_WRITTEN = 48  # tokens of an answer to a prompt of the user's own


@dataclass
class _LiveRequest:
    number: int
    search: str
    part: Part
    head_set: HeadSet
    record: SearchRecord | None = None
    missing: deque[tuple[HeadSet, Example]] = field(default_factory=deque)  # outcomes still to make, once the record is read
    total: int = 0
    chunk: int = CHUNK

    def begin(self, store: Store) -> SearchRecord:
        """Read from the store what is known, once."""
        if self.record is None:
            wanted = [INTACT, self.head_set] if self.head_set else [INTACT]
            record = store.search(self.search)
            known = store.known(record.id, self.part, wanted)
            examples = store.examples(record.id, self.part)
            there = {head_set: set(known[head_set][0].tolist()) if head_set in known else set() for head_set in wanted}
            self.missing = deque(
                (head_set, examples[number])
                for first in range(0, len(examples), CHUNK)
                for head_set in wanted
                for number in range(first, min(first + CHUNK, len(examples)))
                if number not in there[head_set]
            )
            self.record, self.total = record, len(wanted) * len(examples)
        return self.record

    def take(self) -> tuple[HeadSet, list[Example]]:
        """The next chunk: some examples of one head set."""
        head_set, chunk = self.missing[0][0], list[Example]()
        while self.missing and self.missing[0][0] == head_set and len(chunk) < self.chunk:
            chunk.append(self.missing.popleft()[1])
        return head_set, chunk

    def took(self, duration_s: float) -> None:
        """Let the next chunk be larger or smaller."""
        self.chunk = min(8 * CHUNK, 2 * self.chunk) if duration_s < CHUNK_S / 2 else self.chunk
        self.chunk = max(1, self.chunk // 2) if duration_s > 2 * CHUNK_S else self.chunk


class _Server:
    def __init__(self, store: Store, output: TextIO) -> None:
        self.store = store
        self.output = output
        self.changed = threading.Condition()
        self.searches: deque[str] = deque()
        self.stopping: set[str] = set()
        self.live: OrderedDict[str, _LiveRequest] = OrderedDict()
        self.questions: deque[dict[str, Any]] = deque()
        self.models: OrderedDict[tuple[str, str, str], Model] = OrderedDict()
        self.evaluators: dict[tuple[Any, ...], Evaluator] = {}
        self.state = WorkerState()

    def listen(self, lines: TextIO) -> None:
        """Take in requests until there are no more; then the dashboard is gone, and so is this process."""
        for line in lines:
            message = json.loads(line)
            with self.changed:
                match message["do"]:
                    case "run":
                        runs = self.state.search == message["search"] and message["search"] not in self.stopping
                        if not runs and message["search"] not in self.searches:  # asked twice is asked once
                            self.searches.append(message["search"])
                        self.stopping.discard(message["search"])
                    case "stop":
                        self.stopping.add(message["search"])
                    case "live":
                        part, head_set = Part(message["part"]), HeadSet.parse(message["heads"])
                        self.live[message["session"]] = _LiveRequest(message["request"], message["search"], part, head_set)
                    case _:
                        self.questions.append(message)
                self.changed.notify()
        os._exit(0)  # outcomes are stored every second, and the search can be resumed

    def work(self) -> None:
        """Do what is asked, for ever."""
        self.say(WorkerState())
        while True:
            with self.changed:
                while not (self.searches or self.live or self.questions or self.stopping):
                    self.changed.wait()
            self.urgent()
            if self.searches:
                self.run(self.searches.popleft())

    def run(self, search: str) -> None:
        """Run or resume one search; how it ends is in the store."""
        self.say(WorkerState("loading", search))
        try:
            experiment.resume(search, self.store, self.between_batches, self.model)
        except (CelError, experiment.Stopped) as ended:
            self.say(WorkerState(detail=str(ended)))
        except Exception as error:  # a fault of this program: the search is marked failed, the worker lives on
            sys.excepthook(type(error), error, error.__traceback__)
        self.stopping.discard(search)
        self.say(WorkerState())

    def between_batches(self, progress: experiment.Progress) -> None:
        """What a running search calls after each batch."""
        if progress.search in self.stopping:
            raise experiment.Stopped("stopped")
        if progress.stage != self.state.detail:
            self.say(WorkerState("running", progress.search, detail=progress.stage))
        self.urgent()

    def urgent(self) -> None:
        """Answer all live requests and questions; stop what waits in the queue and is not wanted any more."""
        with self.changed:
            asked = set(self.stopping)
            unwanted = [search for search in self.searches if search in asked]
            for search in unwanted:
                self.searches.remove(search)
            if self.state.search is not None:
                asked.discard(self.state.search)
            self.stopping -= asked
        for search in unwanted:
            self.store.end(search, experiment.Status.STOPPED, self.store.search(search).duration_s)
        while self.questions or self.live:
            if self.state.search in self.stopping:
                return
            if self.questions:
                self.reply(self.questions.popleft())
                continue
            with self.changed:
                session, request = self.live.popitem(last=False)
            self.serve(session, request)

    def serve(self, session: str, request: _LiveRequest) -> None:
        """Make some of the outcomes a session waits for, and put it back in line."""
        said = {"session": session, "request": request.number}
        try:
            record = request.begin(self.store)
            if request.missing:
                evaluator = self.evaluator(record)
                head_set, chunk = request.take()
                began_s = time.monotonic()
                made = list(evaluator.outcomes([head_set], chunk))
                request.took(time.monotonic() - began_s)
                self.store.add_outcomes(record.id, request.part, as_table(made))
            running = bool(request.missing)
            done = request.total - len(request.missing)
            self.send(said | {"done": done, "total": request.total, "running": running})
        except Exception as error:
            self.send(said | {"error": _said(error)})
            return
        if running:
            with self.changed:
                self.live.setdefault(session, request)  # unless a newer request has taken its place

    def reply(self, question: dict[str, Any]) -> None:
        """Answer one question of a page."""
        try:
            self.send({"reply": question["id"], "value": self.answered(question)})
        except Exception as error:
            self.send({"reply": question["id"], "error": _said(error)})

    def answered(self, question: dict[str, Any]) -> Any:
        """What is asked: an estimate, continuations of a text, or an example as the model reads it."""
        if question["do"] == "estimate":
            return estimate(SearchConfig(**question["config"]), self.store)._asdict()
        record = self.store.search(question["search"])
        head_set = HeadSet.parse(question["heads"])
        evaluator = self.evaluator(record)
        head_set.within(*evaluator.model.geometry[:2])
        if question["do"] == "answer":
            return _write(evaluator.model, question["text"], head_set, MAX_WRITTEN)
        return _explained(evaluator, self.example(record, question["example"]), head_set)

    def example(self, record: SearchRecord, key: str) -> Example:
        """One of a search's examples that may be looked at."""
        for part in (Part.DISCOVERY, Part.HELD_OUT) if record.frozen_set else (Part.DISCOVERY,):
            for example in self.store.examples(record.id, part):
                if example.key == key:
                    return example
        raise CelError(f"search {record.id} has no example '{key[:40]}' that can be shown: pick one from its list")

    def evaluator(self, record: SearchRecord) -> Evaluator:
        """The evaluator of a search, with its model loaded."""
        config = record.config
        key = (config.model, config.device, config.dtype, config.task, config.chat_template, config.allow_code_execution)
        if key not in self.evaluators:
            model = self.model(config)
            self.evaluators[key] = Evaluator(model, find_task(config.task), config.chat_template, config.allow_code_execution)
        evaluator = self.evaluators[key]
        if self.store.protocol_key(record.id) not in (None, evaluator.protocol.key):
            raise CelError(
                f"search {record.id} was made with another model, dtype or template than '{config.model}' is now: "
                "start a new search"
            )
        return evaluator

    def model(self, config: SearchConfig) -> Model:
        """The model of a search, loaded once; the one not used for longest makes room."""
        key = (config.model, config.device, config.dtype)
        if key not in self.models:
            before = self.state
            self.say(WorkerState("loading", before.search, detail=config.model))
            while len(self.models) >= N_MODELS:
                gone, _ = self.models.popitem(last=False)
                self.evaluators = {kept: value for kept, value in self.evaluators.items() if kept[:3] != gone}
            try:
                self.models[key] = experiment.load_checked(config)
            finally:
                self.say(before)
        self.models.move_to_end(key)
        return self.models[key]

    def say(self, state: WorkerState) -> None:
        """Tell the dashboard what is going on."""
        newest = next(reversed(self.models.values())) if self.models else None
        if newest is not None:
            state = WorkerState(state.status, state.search, newest.spec, str(newest.device), newest.dtype, state.detail)
        self.state = state
        self.send(as_message(state))

    def send(self, message: dict[str, Any]) -> None:
        self.output.write(json.dumps(message) + "\n")
        self.output.flush()


def _said(error: Exception) -> str:
    """An error for a page. A fault of this program is written to standard error, and the search that runs goes on."""
    if isinstance(error, CelError):
        return str(error)
    sys.excepthook(type(error), error, error.__traceback__)
    return f"{type(error).__name__}: {error}"[:300]


def _write(model: Model, text: str, head_set: HeadSet, max_new_tokens: int, stop: str = "\n\n") -> list[str]:
    """Greedy continuations, intact and without the heads."""
    prompt = generation.Prompt(encode(model.tokenizer, text), stop)
    answers = generation.write(model, [INTACT, head_set], [prompt], max_new_tokens)
    return [generation.decode(model, tokens).split(stop)[0] for (tokens,) in answers]


def _explained(evaluator: Evaluator, example: Example, head_set: HeadSet) -> dict[str, str]:
    prompt = evaluator.rendered(example)
    if evaluator.task.scoring != Scoring.GREEDY:
        return {"prompt": prompt, "intact": "", "ablated": ""}
    n_tokens = len(evaluator.requests(example)[0].continuation) + 4
    intact, ablated = _write(evaluator.model, prompt, head_set, n_tokens, stop="\n")
    return {"prompt": prompt, "intact": intact, "ablated": ablated}


def main() -> None:
    """Serve the dashboard that started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the dashboard, which closes this process
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not get between the messages
    try:
        store = Store(sys.argv[1])
    except CelError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    server = _Server(store, output)
    threading.Thread(target=server.listen, args=(sys.stdin,), daemon=True).start()
    server.work()


if __name__ == "__main__":
    main()
