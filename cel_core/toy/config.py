"""What a toy run is made of: the two tasks in conflict, the training, and the switches that leave the proofs behind.

Section 4 of Nguyen, Bair, Kolter (arXiv 2610.21294), in the words of this project:

1. *Features.* Independent signs U, V, W (+1 or -1, equal chance). Feature 0 (U) is the conflict, 1 and 2 are
   task-specific.
2. *Tasks.* A sees (U, V, 0) and wants bV; B sees (U, 0, W) and wants aU + cW. About U they disagree: 0 against a.
3. *Objective.* J = (R_A + R_B) / 4, half the weighted mean of the tasks' squared risks. Per feature this is a curvature
   (1, 1/2, 1/2) times half the squared distance from the optimum (a/2, b, c).
4. *Training.* M heads, every scalar alpha times a standard normal, gradient descent with the fixed step eta. The
   checkpoint is N_alpha = ceil(log(1/alpha) / (eta alpha^2)).

`Beyond` holds what the theorems do not cover, everything off by default. With more than two tasks, task i sees U and
its own feature i + 1, and the tasks want 0 to a from U in equal steps, so that the optimum of U stays a/2 at equal
weights.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from cel_core.errors import ToyError

Array = NDArray[np.float64]
StopRule = Literal["checkpoint", "converged"]
Optimizer = Literal["descent", "adam"]

VERSION = 1
"""Raised whenever equal settings give other numbers, so that stored runs of older versions are not taken for theirs."""
MAX_STEPS = 20_000_000
"""Longest run accepted: some minutes for one seed."""
MIN_ALPHA = 1e-6
"""Smaller starts stay where they are: their checkpoint is a million times MAX_STEPS away."""
MAX_HEADS = 64
MAX_TASKS = 8
MAX_SEED = 2**63 - 1
SETTLED_WITHIN = 1e-6
"""With steps "converged", a run ends once every feature is this near its optimum, in coefficient units."""


def require_number(
    name: str, value: object, low: float, high: float, hint: str, *, open_low: bool = True, open_high: bool = False
) -> float:
    """Hold a finite number to its interval (the lower end excluded, the upper included, unless said otherwise).

    Returns:
        The number as a plain float, so that equal settings are written alike.

    Raises:
        ToyError: it is no number, NaN, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise ToyError(f"{name} {value!r} is not a finite number: {hint}")
    if value < low or (open_low and value == low):
        raise ToyError(f"{name} {value:g} is not {'above' if open_low else 'at least'} {low:g}: {hint}")
    if value > high or (open_high and value == high):
        raise ToyError(f"{name} {value:g} is not {'below' if open_high else 'at most'} {high:g}: {hint}")
    return float(value) + 0.0  # -0.0 becomes 0.0


def require_whole(name: str, value: object, low: int, high: int, hint: str) -> int:
    """Hold a whole number to its range, ends included.

    Returns:
        The number as a plain int.

    Raises:
        ToyError: it is no whole number, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ToyError(f"{name} {value!r} is not a whole number: {hint}")
    if not low <= value <= high:
        raise ToyError(f"{name} {value} is not between {low:,} and {high:,}: {hint}")
    return int(value)


def _set(config: object, **values: object) -> None:
    """Set fields of a frozen dataclass while it is being made."""
    for name, value in values.items():
        object.__setattr__(config, name, value)


class Tasks(NamedTuple):
    """The tasks' inputs and targets, all of which are linear in the signs."""

    visible: Array  # n_tasks, n_features: 1 where the task sees the feature, else 0
    target: Array  # n_tasks, n_features: the coefficients the task wants
    weight: Array  # n_tasks: share in the objective, sums to 1


@dataclass(frozen=True)
class Beyond:
    """Switches outside the theorems; the defaults are the proven model.

    Attributes:
        dense: full instead of diagonal query, key, value and output projections.
        learnt_encoding: the feature directions are trained too, starting from the fixed ones.
        optimizer: `descent`, or `adam` (0.9, 0.999, 1e-8) with eta as its learning rate.
        batch_size: sampled examples per task and step; 0 is the whole population.
        label_noise: standard deviation of the noise on the sampled targets.
        weight_decay: each step shrinks every projection scalar by eta times this.
        init_scale: multiplies the initialisation, and leaves the checkpoint of alpha where it is.
        task_weights: one positive weight per task, normalised to sum 1; empty for equal weights.
        n_tasks: 2 (A and B) to 8.
    """

    dense: bool = False
    learnt_encoding: bool = False
    optimizer: Optimizer = "descent"
    batch_size: int = 0
    label_noise: float = 0.0
    weight_decay: float = 0.0
    init_scale: float = 1.0
    task_weights: tuple[float, ...] = ()
    n_tasks: int = 2

    def __post_init__(self) -> None:
        for name in ("dense", "learnt_encoding"):
            if not isinstance(getattr(self, name), bool):
                raise ToyError(f"{name} {getattr(self, name)!r} is not a switch: give true or false")
        if self.optimizer not in get_args(Optimizer):
            raise ToyError(f"optimizer {self.optimizer!r} is unknown: choose descent or adam")
        hint = "1 for every task is the theorems' case"
        _set(
            self,
            batch_size=require_whole("batch_size", self.batch_size, 0, 1_000_000, "0 means the whole population"),
            label_noise=require_number("label_noise", self.label_noise, 0, 100, "0 means none", open_low=False),
            weight_decay=require_number("weight_decay", self.weight_decay, 0, 10, "0 means none", open_low=False),
            init_scale=require_number("init_scale", self.init_scale, 0, 100, "1 is the theorems' start"),
            n_tasks=require_whole("n_tasks", self.n_tasks, 2, MAX_TASKS, "the theorems have 2"),
            task_weights=tuple(require_number("task weight", weight, 0, 1000, hint) for weight in self.task_weights),
        )
        if self.task_weights and len(self.task_weights) != self.n_tasks:
            raise ToyError(f"{len(self.task_weights)} task weights do not fit {self.n_tasks} tasks: give one per task")
        if self.label_noise and not self.batch_size:
            raise ToyError(
                f"label_noise {self.label_noise:g} averages out over the whole population: set batch_size, such as 32"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The switches that are on, in words; empty inside the theorems."""
        weights = set(self.task_weights)
        words = {
            "dense projections": self.dense,
            "learnt feature encodings": self.learnt_encoding,
            "Adam": self.optimizer == "adam",
            f"batches of {self.batch_size}": self.batch_size > 0,
            f"label noise {self.label_noise:g}": self.label_noise > 0,
            f"weight decay {self.weight_decay:g}": self.weight_decay > 0,
            f"initialisation x {self.init_scale:g}": self.init_scale != 1,
            "unequal task weights": len(weights) > 1,
            f"{self.n_tasks} tasks": self.n_tasks != 2,
        }
        return tuple(word for word, on in words.items() if on)

    @property
    def changes_update(self) -> bool:
        """Whether a step is another one than the theorems' closed form with other constants."""
        return self.dense or self.learnt_encoding or self.optimizer == "adam" or self.never_settles

    @property
    def never_settles(self) -> bool:
        """Whether the residuals stay away from zero however long the run: gradient noise, or a shifted optimum."""
        return self.batch_size > 0 or self.weight_decay > 0


@dataclass(frozen=True)
class ToyConfig:
    """One toy run, or a population of them, checked on construction.

    Attributes:
        a: what task B wants from the conflict feature (A wants 0); t = a/2.
        b: what task A wants from its own feature.
        c: what task B (and every further task) wants from its own feature.
        alpha: standard deviation of every scalar at the start, below 1.
        eta: step of gradient descent.
        heads: number of heads M.
        steps: a number of steps, `checkpoint` (N_alpha), or `converged` (at least N_alpha, then until every feature is
            within 1e-6 of its optimum, at most `last_step`).
        seed: of the run, or the first of a population's consecutive seeds.
        beyond: switches outside the theorems.
    """

    a: float = 2.0
    b: float = 1.0
    c: float = 1.0
    alpha: float = 0.1
    eta: float = 0.05
    heads: int = 3
    steps: int | StopRule = "checkpoint"
    seed: int = 0
    beyond: Beyond = Beyond()

    def __post_init__(self) -> None:
        small = "the theorems need a small start, such as 0.1"
        _set(
            self,
            **{name: require_number(name, getattr(self, name), 0, 1000, "the paper's check uses a=2, b=c=1") for name in "abc"},
            alpha=require_number("alpha", self.alpha, 0, 1, small, open_high=True),
            eta=require_number("eta", self.eta, 0, 1000, "a usual step is 0.05"),
            heads=require_whole("heads", self.heads, 1, MAX_HEADS, "the paper has 3"),
            seed=require_whole("seed", self.seed, 0, MAX_SEED, "the usual first seed is 0"),
        )
        if isinstance(self.steps, str):
            self._require_reachable_checkpoint()
        else:
            _set(self, steps=require_whole("steps", self.steps, 1, MAX_STEPS, "or write checkpoint or converged"))
        require_number("alpha", self.alpha, MIN_ALPHA, 1, f"{small}, and less does not move", open_low=False)
        if not self._limit_unknown and self.eta > self.step_limit:
            raise ToyError(
                f"eta {self.eta:g} oscillates or diverges: above {self.step_limit:.4g} no winning head is stable at "
                f"the optimum (step times curvature exceeds 2); choose less, such as {self.step_limit / 10:.2g}"
            )

    def _require_reachable_checkpoint(self) -> None:
        if self.steps not in get_args(StopRule):
            raise ToyError(f"steps {self.steps!r} is not a rule: give a number, checkpoint or converged")
        if self.checkpoint > MAX_STEPS:
            raise ToyError(
                f"alpha {self.alpha:g} with eta {self.eta:g} needs {float(self.checkpoint):.3g} steps to its checkpoint, "
                f"more than {MAX_STEPS:,}: raise alpha or eta, or give a number of steps"
            )
        if self.steps == "converged" and self.beyond.never_settles:
            raise ToyError(
                "steps converged is never reached with sampled batches or weight decay, which hold the run away from "
                "the optimum: give a number of steps, or checkpoint"
            )

    @property
    def _limit_unknown(self) -> bool:
        return self.beyond.changes_update or self.beyond.init_scale != 1

    @property
    def n_features(self) -> int:
        """The conflict feature, and one per task."""
        return self.beyond.n_tasks + 1

    @property
    def feature_names(self) -> tuple[str, ...]:
        """U (the conflict), V (task A's), W (task B's), then X3, X4, ..."""
        return ("U", "V", "W", *(f"X{j}" for j in range(3, self.n_features)))

    @property
    def tasks(self) -> Tasks:
        """Inputs, targets and weights of every task: A first, B (which wants all of a) last."""
        n = self.beyond.n_tasks
        own = np.eye(n, self.n_features, k=1)
        target = own * self.c
        target[0] = own[0] * self.b
        target[:, 0] = np.linspace(0, self.a, n)
        weight = np.asarray(self.beyond.task_weights or (1.0,) * n, dtype=np.float64)
        visible = own.copy()
        visible[:, 0] = 1
        return Tasks(visible, target, weight / weight.sum())

    @property
    def curvature(self) -> Array:
        """Second derivative of J along each aggregate coefficient, shape (n_features,): 1, 1/2, 1/2."""
        tasks = self.tasks
        return tasks.weight @ tasks.visible

    @property
    def optimum(self) -> Array:
        """The aggregate coefficients that minimise J, shape (n_features,): a/2, b, c (Proposition 4.1)."""
        tasks = self.tasks
        return tasks.weight @ (tasks.visible * tasks.target) / self.curvature

    @property
    def checkpoint(self) -> int:
        """N_alpha, in steps."""
        return math.ceil(-math.log(self.alpha) / max(self.eta * self.alpha**2, 1e-300))  # out of reach, not by 0

    @property
    def last_step(self) -> int:
        """Where a run ends at the latest: the number of steps, N_alpha, or with `converged` a generous cap.

        Growth from the start takes a time inverse to curvature times optimum, so the cap does too.
        """
        if isinstance(self.steps, int):
            return self.steps
        if self.steps == "checkpoint":
            return self.checkpoint
        slowest = min(1.0, float((self.curvature * self.optimum).min()))
        return min(MAX_STEPS, math.ceil(10 * self.checkpoint / slowest))

    @property
    def step_limit(self) -> float:
        """Largest eta at which some single winner per feature is a stable point of descent.

        At the optimum the curvature along the winner's scalars is the feature's curvature times |grad c|^2, with
        c = o v tanh(q k) = optimum. It is least for o = v and q = k; with s = q k and T = tanh(s) it is then
        2 c T + 2 c^2 s (1 - T^2)^2 / T^2, minimised over s here. Above 2 over the largest such value no winner is
        stable, whatever the start; below it runs may still diverge from a large start, which is detected as they run.
        """
        s = np.geomspace(1e-3, 30, 4001)[:, None]
        tanh, c = np.tanh(s), self.optimum
        slope_squared = 2 * c * tanh + 2 * c**2 * s * (1 - tanh**2) ** 2 / tanh**2
        return float(2 / (self.curvature * slope_squared.min(axis=0)).max())

    def key(self, *also: str | int) -> str:
        """A hash of every setting, of what else is given and of VERSION: equal exactly for equal questions."""
        content = json.dumps([VERSION, *also, asdict(self)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "ToyConfig":
        """The inverse of `dataclasses.asdict`, also after a round trip through JSON.

        Raises:
            ToyError: a key is unknown, or a value is out of its range.
        """
        beyond = plain.get("beyond", {})
        for given, kind in ((plain, cls), (beyond, Beyond)):
            unknown = set(given) - {field.name for field in fields(kind)}
            if unknown:
                raise ToyError(f"{sorted(unknown)[0]!r} is not a setting of the toy model: leave it out")
        return cls(**{**plain, "beyond": Beyond(**beyond)})
