"""lm-evaluation-harness 0.4.13 over local rows: its own task files, documents, metrics and model class; no hub.

A task file of the harness is included as it is, and only where its rows come from is replaced.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

TASK_FILES = Path(lm_eval.__file__).parent / "tasks"
TIMEOUT_S = 3.0  # code_eval's


def harness_task(
    task_file: str, rows: Path, scratch: Path, chat_template: Callable[..., str] | None = None, **changes: Any
) -> ConfigurableTask:
    """A task of the harness, its requests built.

    Args:
        task_file: the harness's own file, below its tasks folder.
        rows: a JSONL file that stands in for the data set.
        scratch: a folder to write to.
        chat_template: the model's, where the prompts shall go through it.
        changes: settings of the task to replace.
    """
    name = "local_" + Path(task_file).stem
    settings = {
        "include": str(TASK_FILES / task_file),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"rows": str(rows)}, "cache_dir": str(scratch / "datasets")},
        "training_split": None,
        "validation_split": None,
        "test_split": "rows",
        **changes,
    }
    (scratch / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    task = TaskManager(include_defaults=False, include_path=scratch).load([name])["tasks"][name]
    task.build_all_requests(apply_chat_template=chat_template is not None, chat_template=chat_template)
    return task


class CodeEval:
    """Stands in for the hub's ``code_eval`` metric, which `lm_eval/tasks/mbpp/utils.py` loads when it is imported.

    A candidate passes when the text ``candidate + "\\n" + tests`` goes through `exec` with empty globals to its end, without
    an exception (SystemExit included) and within 3 s, in a process of its own.
    """

    def compute(self, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]) -> tuple[dict, dict]:
        """Return ``{"pass@1": share of candidates that pass}`` and every result, by problem, as code_eval does."""
        assert list(k) == [1]
        results = [
            [_execute(f"{candidate}\n{tests}") for candidate in candidates]
            for candidates, tests in zip(predictions, references, strict=True)
        ]
        shares = [Counter(problem)["passed"] / len(problem) for problem in results]
        return {"pass@1": sum(shares) / len(shares)}, dict(enumerate(results))


_RUN = f"""
import contextlib, io, os, signal, sys

class TimedOut(Exception): pass

def alarm(*_): raise TimedOut

program, verdict = sys.stdin.read(), os.dup(1)
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, {TIMEOUT_S})
try:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(program, {{}})
    result = "passed"
except TimedOut:
    result = "timed out"
except BaseException as error:
    result = f"failed: {{error}}"
signal.setitimer(signal.ITIMER_REAL, 0)
os.write(verdict, result.encode())
"""


def _execute(program: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-X", "utf8", "-c", _RUN], input=program.encode(), capture_output=True, timeout=10 * TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    return done.stdout.decode() or "failed"
