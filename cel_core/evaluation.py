"""Put examples to a model under head sets, and say what came of it: outcomes.

Plain data goes in (head sets and examples) and plain data comes out (`cel_core.outcomes`), so that another way of making
outcomes, on other machines say, can stand in its place.
"""

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from cel_core import generation
from cel_core.attribution import attribute
from cel_core.config import Protocol
from cel_core.engine import Block, PackedEngine, PlainEngine, Work, build_engine
from cel_core.errors import ConfigError
from cel_core.heads import Head, HeadSet, all_heads
from cel_core.models import Model
from cel_core.outcomes import Outcomes
from cel_core.prompts import Request, chat_prompt, encode, encode_request, template_hash
from cel_core.sandbox import run_programs
from cel_core.tasks import Example, Scoring, Task
from cel_core.tasks.mbpp import MAX_NEW_TOKENS, Mbpp

PROGRAM_ROWS = 32  # programs written before they are run and reported


def require_code_execution(task: Task, allowed: bool) -> None:
    """Refuse a task that runs generated code, unless the user allows it.

    Raises:
        ConfigError: it does, and the user did not.
    """
    if task.scoring == Scoring.PROGRAM and not allowed:
        raise ConfigError(
            f"task '{task.name}' runs code that the model writes: allow it with --allow-code-execution, on a machine where "
            "that is acceptable"
        )


def require_margins(task: Task) -> None:
    """Refuse attribution for a task whose outcomes have no margin.

    Raises:
        ConfigError: the task is one of written programs.
    """
    if task.scoring == Scoring.PROGRAM:
        raise ConfigError(f"task '{task.name}' has no margin to attribute: screen it with --screen exact")


def template_note(task: Task, chat_template: bool) -> str:
    """What to know before a chat template is put around a task's prompt; "" where there is nothing."""
    if chat_template and task.name == "mbpp":
        return "mbpp's three worked examples are inside one chat turn: mbpp-instruct is the variant made for chat models"
    return ""


class Evaluator:
    """One model, one task, one protocol."""

    def __init__(
        self,
        model: Model,
        task: Task,
        chat_template: bool = False,
        allow_code_execution: bool = False,
        engine: PackedEngine | PlainEngine | None = None,
    ) -> None:
        require_code_execution(task, allow_code_execution)
        self.model = model
        self.task = task
        self.chat_template = chat_template
        self.engine = engine or build_engine(model)
        self._requests: dict[str, list[Request]] = {}

    @property
    def protocol(self) -> Protocol:
        """All that can change an answer."""
        writes = self.task.scoring == Scoring.PROGRAM
        return Protocol(
            model=self.model.fingerprint,
            dtype=self.model.dtype,
            task=self.task.name,
            task_version=self.task.version,
            scoring=self.task.scoring,
            chat_template=template_hash(self.model.tokenizer) if self.chat_template else "",
            max_new_tokens=MAX_NEW_TOKENS if writes else 0,
            repetition_penalty=generation.repetition_penalty(self.model) if writes else 1.0,
        )

    def rendered(self, example: Example) -> str:
        """The text the model reads."""
        text = chat_prompt(self.model.tokenizer, example.context) if self.chat_template else example.context
        return text + self.task.answer_prefix if isinstance(self.task, Mbpp) else text

    def outcomes(self, head_sets: Sequence[HeadSet], examples: Sequence[Example]) -> Iterator[Outcomes]:
        """Outcomes of every example under every head set, in blocks as they are done."""
        if self.task.scoring == Scoring.PROGRAM:
            yield from self._programs(head_sets, examples)
            return
        requests = [self.requests(example) for example in examples]
        for block in self.engine.score(head_sets, requests, greedy=self.task.scoring == Scoring.GREEDY):
            yield self._judged(block, head_sets, [examples[index] for index in block.examples])

    def promising(self, examples: Sequence[Example], attributed: Callable[[int], None] = lambda _: None) -> list[Head]:
        """All heads, those first whose removal alone gains most by estimate (`cel_core.attribution`).

        The estimate of a gain is the share of examples whose margin would rise above 0, less the share that would fall below;
        the mean change of the margin decides between equals.

        Args:
            examples: the examples to estimate on.
            attributed: told how many examples are done.

        Raises:
            ConfigError: the task has no margin, or packed sequences are not exact for the model.
        """
        require_margins(self.task)
        if not isinstance(self.engine, PackedEngine):
            raise ConfigError(f"model '{self.model.spec}' runs without the packing that attribution needs: use --screen exact")
        flips = change = np.zeros(self.model.geometry[:2])
        for number, example in enumerate(examples, start=1):
            found = attribute(self.model, self.requests(example), self.task.divisors(example.continuations), example.gold)
            flips = flips + ((found.margin_nats + found.change_nats > 0).astype(int) - int(found.margin_nats > 0))
            change = change + found.change_nats
            self.engine.work = Work(self.engine.work.token_layers + found.token_layers, self.engine.work.logits)
            attributed(number)
        heads = all_heads(*self.model.geometry[:2])
        order = np.lexsort((-change.ravel(), -flips.ravel()))
        return [heads[number] for number in order]

    def requests(self, example: Example) -> list[Request]:
        """The tokens to read and to score, one request a continuation; made once per example."""
        if example.key not in self._requests:
            context, continuations = self.rendered(example), example.continuations
            if self.chat_template and self.task.scoring != Scoring.GREEDY:
                # the harness sets no blank between a chat template, which ends the line, and a choice
                continuations = tuple(continuation.removeprefix(" ") for continuation in continuations)
            self._requests[example.key] = [
                encode_request(self.model.tokenizer, context, continuation, self.model.max_length)
                for continuation in continuations
            ]
        return self._requests[example.key]

    def n_tokens(self, example: Example) -> int:
        """Tokens that the plain way reads for an example: each request by itself; 0 where the model writes a program."""
        return sum(len(request.context) + len(request.continuation) - 1 for request in self.requests(example))

    def _judged(self, block: Block, head_sets: Sequence[HeadSet], examples: list[Example]) -> Outcomes:
        shape = len(block.sets), len(examples), -1
        logprobs = block.scores.logprob_nats.reshape(shape)  # (sets, examples, continuations)
        if self.task.scoring == Scoring.GREEDY:
            margins = block.scores.margin_nats.reshape(shape)[..., 0]
            matched = block.scores.n_matched.reshape(shape)[..., 0]
            correct = matched == np.array([len(self.requests(example)[0].continuation) for example in examples])
            answers = self._written(matched, block.scores.written.reshape(shape)[..., 0], examples)
        else:
            merit = logprobs / np.array([self.task.divisors(example.continuations) for example in examples])
            gold = np.array([example.gold for example in examples])
            chosen = merit.argmax(axis=-1)
            correct = chosen == gold
            is_gold = np.arange(merit.shape[-1]) == gold[:, None]
            margins = merit[:, is_gold] - np.where(is_gold, -np.inf, merit).max(axis=-1)
            answers = chosen.astype(str).astype(object)
        return Outcomes(
            head_sets=[head_sets[index] for index in block.sets],
            examples=[example.key for example in examples],
            correct=correct,
            answer=answers,
            margin_nats=margins,
            logprobs_nats=logprobs,
            detail=np.full(correct.shape, "", dtype=object),
        )

    def _written(self, matched: np.ndarray, written: np.ndarray, examples: list[Example]) -> np.ndarray:
        """What the model would have written, as far as scoring saw it: the gold tokens it agrees with, then its own."""
        texts: dict[tuple[int, int, int], str] = {}
        answers = np.empty(matched.shape, dtype=object)
        for (row, column), count in np.ndenumerate(matched):
            case = (column, int(count), int(written[row, column]))
            if case not in texts:
                tokens = [
                    *self.requests(examples[column])[0].continuation[: case[1]],
                    *([case[2]] if case[2] >= 0 else []),
                ]
                texts[case] = self.model.tokenizer.decode(tokens).strip()
            answers[row, column] = texts[case]
        return answers

    def _programs(self, head_sets: Sequence[HeadSet], examples: Sequence[Example]) -> Iterator[Outcomes]:
        task = self.task
        assert isinstance(task, Mbpp)
        prompts = [generation.Prompt(encode(self.model.tokenizer, self.rendered(example)), task.stop) for example in examples]
        n_sets = max(1, PROGRAM_ROWS // len(examples))
        for first in range(0, len(head_sets), n_sets):
            chunk = head_sets[first : first + n_sets]
            for start in range(0, len(examples), PROGRAM_ROWS):
                asked = examples[start : start + PROGRAM_ROWS]
                answers = generation.write(self.model, chunk, prompts[start : start + PROGRAM_ROWS], MAX_NEW_TOKENS)
                programs = [task.program(generation.decode(self.model, tokens)) for row in answers for tokens in row]
                jobs = [(program, example.tests) for program, example in zip(programs, [*asked] * len(chunk), strict=True)]
                verdicts = run_programs(jobs, n_workers=os.cpu_count() or 1)
                shape = len(chunk), len(asked)
                yield Outcomes(
                    head_sets=list(chunk),
                    examples=[example.key for example in asked],
                    correct=np.array([verdict.passed for verdict in verdicts]).reshape(shape),
                    answer=np.array(programs, dtype=object).reshape(shape),
                    margin_nats=np.full(shape, np.nan),
                    logprobs_nats=np.zeros((*shape, 0)),
                    detail=np.array([verdict.reason for verdict in verdicts], dtype=object).reshape(shape),
                )
