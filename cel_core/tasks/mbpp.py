"""MBPP (Austin et al., 2021): write a Python function that passes three tests.

Each prompt holds three fixed worked examples (task_id 2, 3 and 4) and the task's own description up to ``[BEGIN]``; the model
writes greedily, at most 256 tokens; the program ends before the first ``[DONE]`` and is right when it runs and its three
asserts pass. The official splits follow from task_id: 1-10 prompt, 11-510 test, 511-600 validation, 601-974 train.

``mbpp-instruct`` is the variant for chat models: the same tasks asked in one user turn, the answer begun with a fenced Python
block and cut at its end. Code keeps the CRLF line ends of the data, as lm-evaluation-harness does.
"""

from cel_core.errors import DataError
from cel_core.tasks.base import Example, HubSource, Row, Scoring, Sizes, Task

WORKED_EXAMPLES = (2, 3, 4)
MAX_NEW_TOKENS = 256
_SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975)}


class Mbpp(Task):
    """Program synthesis, three worked examples before each task."""

    name = "mbpp"
    title = "MBPP"
    about = "Write a Python function, after three worked examples. Right when it passes its three asserts."
    scoring = Scoring.PROGRAM
    paper_sizes = Sizes(374, 500)
    hub = HubSource("google-research-datasets/mbpp", "full", ("train", "test", "validation", "prompt"))
    held_out_splits = ("test",)
    stop = "[DONE]"
    answer_prefix = ""  # what the answer is made to start with

    def examples(self, rows: list[Row]) -> list[Example]:
        """See `Task.examples`; the worked examples come from the same rows and are left out of the result."""
        by_id = {_task_id(row): row for row in rows if _task_id(row) in WORKED_EXAMPLES}
        missing = [str(number) for number in WORKED_EXAMPLES if number not in by_id]
        if missing:
            raise DataError(
                f"MBPP needs its three worked examples, and task_id {', '.join(missing)} is not among the rows: "
                "put them into mbpp.prompt.jsonl beside the others"
            )
        shots = "".join(self._shot(by_id[number]) for number in WORKED_EXAMPLES)
        return [
            Example(
                task=self.name,
                context=shots + self._question(row),
                continuations=(),
                gold=0,
                answer=row.text("code"),
                tests=row.texts("test_list", 3),
                split=_split(row),
            )
            for row in rows
            if _task_id(row) not in WORKED_EXAMPLES
        ]

    def program(self, written: str) -> str:
        """The program in what the model wrote: everything before the first ``[DONE]``."""
        return written.split(self.stop)[0]

    def _question(self, row: Row) -> str:
        tests = "\n".join(row.texts("test_list", 3))
        return (
            f"You are an expert Python programmer, and here is your task: {row.text('text', 'prompt')} "
            f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
        )

    def _shot(self, row: Row) -> str:
        return f"{self._question(row)}{row.text('code')}\n[DONE]\n\n"


class MbppInstruct(Mbpp):
    """The variant for chat models: plain description, answer in a fenced block."""

    name = "mbpp-instruct"
    title = "MBPP, instruct"
    about = "Write a Python function in a fenced block. Right when it passes its three asserts."
    stop = "```"
    answer_prefix = "\n```python\n"

    def program(self, written: str) -> str:
        """The program in what the model wrote: the fenced block, empty where the fence was never closed."""
        block, fence, _ = written.partition(self.stop)
        return block.removesuffix("\n") if fence else ""

    def _question(self, row: Row) -> str:
        tests = "\n".join(row.texts("test_list", 3))
        return (
            f"You are an expert Python programmer, and here is your task:\n{row.text('text', 'prompt')}\n"
            f"Your code should pass these tests:\n{tests}"
        )

    def _shot(self, row: Row) -> str:
        return f"{self._question(row)}{self.answer_prefix}{row.text('code')}\n```\n\n"


def _task_id(row: Row) -> int:
    value = row.value("task_id")
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"{row.where}: task_id {value!r} is not a whole number: correct the row")
    return value


def _split(row: Row) -> str:
    number = _task_id(row)
    return next((split for split, numbers in _SPLITS.items() if number in numbers), "")
