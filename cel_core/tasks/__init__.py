"""The tasks a model can be searched on, one benchmark a file."""

from cel_core.errors import ConfigError
from cel_core.tasks.arithmetic import Arithmetic
from cel_core.tasks.base import Example, Row, Scoring, Sizes, Task
from cel_core.tasks.boolq import BoolQ
from cel_core.tasks.carry import Carry, NoCarry
from cel_core.tasks.hellaswag import HellaSwag
from cel_core.tasks.mbpp import Mbpp, MbppInstruct

TASKS: dict[str, Task] = {
    task.name: task for task in (Arithmetic(), BoolQ(), HellaSwag(), Mbpp(), MbppInstruct(), Carry(), NoCarry())
}

__all__ = ["TASKS", "Example", "Row", "Scoring", "Sizes", "Task", "find_task"]


def find_task(name: str) -> Task:
    """The task of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in TASKS:
        raise ConfigError(f"task '{name}' is unknown: choose one of {', '.join(TASKS)}")
    return TASKS[name]
