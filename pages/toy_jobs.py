"""Computations of the toy page that take longer than an event may: a few processes, each looked after by a thread of this one.

1. A job is named by what it computes, so that a reload, a second tab and a second browser find the same one, still advancing.
2. At most MAX_RUNNING compute at a time; the others wait. At most MAX_WAITING wait; one more is refused.
3. Its thread listens to its process (`toy_process`), which ends with the job, or with the dashboard. The process is a program
   of its own: one of `multiprocessing` would import the whole dashboard again, which takes longer than most jobs.
4. A job appends to `rows` as it goes, tells its share, and ends done, stopped, or with a problem in one line. The last MAX_KEPT
   are remembered until the dashboard ends; what deserves longer, its thread puts in the store.

The results depend on nothing but the key, and so the desk may be one for the whole process.
"""

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cel_core.errors import CelError, ToyError

MAX_RUNNING = 2
MAX_WAITING = 8
MAX_KEPT = 40
ROOT = Path(__file__).resolve().parent.parent


class Stopped(Exception):  # noqa: N818  not an error: the user asked for it
    """Raised inside a job's work when its user asked it to stop."""


@dataclass
class Job:
    """One computation, as far as it is; written by its thread alone, but for `stopping`."""

    key: tuple[str, ...]
    rows: list[Any] = field(default_factory=list)
    share: float = 0.0
    began_s: float | None = None  # monotonic; None while it waits its turn
    ended: bool = False
    stopping: bool = False
    stopped: bool = False
    problem: str = ""
    process: subprocess.Popen[bytes] | None = None  # that computes, once it has begun

    @property
    def done(self) -> bool:
        """Whether it computed all that it was asked for."""
        return self.ended and not self.stopped and not self.problem

    @property
    def left_s(self) -> float | None:
        """Seconds left at its pace so far; None where there is none yet."""
        if self.ended or self.began_s is None or self.share < 0.01:
            return None
        return (time.monotonic() - self.began_s) * (1 - self.share) / self.share

    def report(self, share: float) -> None:
        """Progress for the toy engine.

        Raises:
            Stopped: the user asked for it.
        """
        self.share = min(1.0, share)
        if self.stopping:
            raise Stopped

    def compute(self, kind: str, *arguments: object) -> None:
        """Have a process compute, and keep what it finds as it comes.

        Args:
            kind: one of `toy_process.WORKS`.
            arguments: what that takes.

        Raises:
            Stopped: the user asked for it.
            ToyError: the settings make no model, or the process did not come to its end.
        """
        command = [sys.executable, "-m", "pages.toy_process"]
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        except OSError as error:
            raise ToyError(f"no process for the computation can be started ({error}): end other programs, try again") from None
        if self.stopping:  # since before there was a process to end
            self.process.kill()
        try:
            with self.process as process:
                self._listen(process, pickle.dumps((kind, arguments)))
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            if self.stopping:
                raise Stopped from None
            ended = f"the computation's process ended too soon (status {self.process.returncode})"
            raise ToyError(f"{ended}: begin it again; the dashboard's terminal may say why") from None

    def _listen(self, process: subprocess.Popen[bytes], request: bytes) -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(request)
        process.stdin.flush()
        while True:
            what, value = pickle.load(process.stdout)
            if what == "done":
                return
            if what == "problem":
                raise ToyError(value)
            if what == "row":
                self.rows.append(value)
            else:
                self.report(value)


Work = Callable[[Job], None]


class Desk:
    """The jobs of this process."""

    def __init__(self, max_running: int = MAX_RUNNING) -> None:
        self._jobs: dict[tuple[str, ...], Job] = {}
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(max_running)
        self._max_running = max_running

    def get(self, *key: str) -> Job | None:
        """The job of that key, running or remembered."""
        return self._jobs.get(key)

    def start(self, work: Work, *key: str) -> Job:
        """Begin a job; one that is under way goes on, one that ended begins anew.

        Raises:
            ToyError: too many are waiting.
        """
        with self._lock:
            known = self._jobs.get(key)
            if known is not None and not known.ended:
                return known
            n_live = sum(not job.ended for job in self._jobs.values())
            if n_live >= self._max_running + MAX_WAITING:
                raise ToyError(f"{n_live} computations are under way or waiting: stop one, or wait for one to end")
            for old in [each for each, job in self._jobs.items() if job.ended][: max(0, len(self._jobs) - MAX_KEPT)]:
                del self._jobs[old]
            self._jobs.pop(key, None)
            job = self._jobs[key] = Job(key)
        threading.Thread(target=self._work, args=(job, work), name=f"toy {key[0]}", daemon=True).start()
        return job

    def stop(self, *key: str) -> None:
        """Ask a job to stop; what it has computed stays."""
        job = self._jobs.get(key)
        if job is not None:
            job.stopping = True
            if job.process is not None:
                job.process.kill()

    def _work(self, job: Job, work: Work) -> None:
        finished = False
        try:
            with self._turns:
                job.began_s = time.monotonic()
                job.report(0.0)
                work(job)
            finished = True
        except Stopped:
            job.stopped = True
        except CelError as error:
            job.problem = str(error)
        finally:
            if not (finished or job.stopped or job.problem):
                job.problem = "the computation failed unexpectedly: the terminal of the dashboard says where"
            job.ended = True


DESK = Desk()
