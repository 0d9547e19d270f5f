"""The toy theory as a laboratory: why joint training can leave a head whose removal helps one task.

Section 4 of Nguyen, Bair, Kolter, arXiv 2610.21294. From the settings to the results:

1. `config`: the two tasks in conflict, the training, and the switches that leave the proofs behind (`Beyond`).
2. `model`: the closed form, its risks and gradient, winners, and the deletion of a head. `attention` is the actual softmax
   model that it is tested against, and the only module here that needs torch.
3. `descent` takes the theorems' steps; `variants`, on top of `projections`, those beyond them; `flow` is the limit of small
   steps. `training` runs many seeds to their end.
4. `trajectory`: one run, recorded for a plot. `population`: thousands in numbers. `phase`: a map over two settings.
   `theorems`: every statement checked. `command`: the command line.
"""

from cel_core.toy.config import MAX_HEADS, MAX_SEED, MAX_STEPS, MAX_TASKS, Beyond, ToyConfig
from cel_core.toy.model import (
    Effects,
    Risks,
    delete_head,
    deletion_effects,
    in_event,
    predicted_effects,
    predicted_event_probability,
    risks,
    winners,
)
from cel_core.toy.phase import PHASE_SETTINGS, Axis, PhaseCell, phase_map
from cel_core.toy.population import (
    MAX_SEEDS,
    Population,
    PopulationSummary,
    ScalePoint,
    Spread,
    loser_order,
    order_of,
    populate,
    scaling,
)
from cel_core.toy.theorems import Check, all_checks
from cel_core.toy.training import Progress
from cel_core.toy.trajectory import MAX_POINTS, Method, Trajectory, run

__all__ = [
    "MAX_HEADS",
    "MAX_POINTS",
    "MAX_SEED",
    "MAX_SEEDS",
    "MAX_STEPS",
    "MAX_TASKS",
    "PHASE_SETTINGS",
    "Axis",
    "Beyond",
    "Check",
    "Effects",
    "Method",
    "PhaseCell",
    "Population",
    "PopulationSummary",
    "Progress",
    "Risks",
    "ScalePoint",
    "Spread",
    "ToyConfig",
    "Trajectory",
    "all_checks",
    "delete_head",
    "deletion_effects",
    "in_event",
    "loser_order",
    "order_of",
    "phase_map",
    "populate",
    "predicted_effects",
    "predicted_event_probability",
    "risks",
    "run",
    "scaling",
    "winners",
]
