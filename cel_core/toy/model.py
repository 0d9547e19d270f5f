"""The toy model in closed form: why joint training can leave a head whose removal helps one task.

One layer of M attention heads over a fixed memory pair per feature (plus and minus its direction), with diagonal query,
key, value and output projections. Its softmax over a pair is a tanh, so that the whole model is (Nguyen, Bair, Kolter,
arXiv 2610.21294, section 4 and appendix B.0.1):

1. `coefficients`: head h gives feature j the coefficient c_hj = o_hj v_hj tanh(q_hj k_hj).
2. The prediction is w . x with the aggregate w_j = sum_h c_hj: linear in the signs, not in the scalars.
3. `risks`: R_A = w_0^2 + (w_1 - b)^2, R_B = (w_0 - a)^2 + (w_2 - c)^2, J = (R_A + R_B) / 4.
4. `gradient`: by hand, from the four partial derivatives of c_hj. `attention` holds the softmax model that it is
   tested against by autograd; `training` does the descent.
5. `winners`: each feature ends in one head. `in_event`: the conflict feature's winner wins no task-specific feature.
6. `delete_head`: taking a head away subtracts its coefficients from w, and changes nothing else.

Not covered: anything of real language models. The paper offers this as one possible mechanism, and so does this
project.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cel_core.errors import ToyError
from cel_core.toy.config import MAX_SEED, Array, ToyConfig

QUERY, KEY, VALUE, OUTPUT = range(4)
"""Order of the four scalars of a head and feature."""


class Risks(NamedTuple):
    """Population risks, in squared target units."""

    tasks: Array  # ..., n_tasks: A first, B last
    joint: Array  # ...: half their weighted mean, which descent minimises

    @property
    def task_a(self) -> Array:
        """R_A, shape (...)."""
        return self.tasks[..., 0]

    @property
    def task_b(self) -> Array:
        """R_B, shape (...)."""
        return self.tasks[..., -1]


class Effects(NamedTuple):
    """What deleting a head does, in risk units; arrays over runs, or single numbers where predicted."""

    task_a_drop: Array  # R_A before minus after
    task_b_rise: Array  # R_B after minus before
    joint_rise: Array  # J after minus before


def initial_parameters(config: ToyConfig, seeds: Sequence[int]) -> Array:
    """The scalars at the start, each seed from its own generator, whatever the other seeds.

    Args:
        config: the model.
        seeds: one per run.

    Returns:
        Shape (n_seeds, 4, n_heads, n_features), the order of the four is QUERY, KEY, VALUE, OUTPUT; with dense
        projections (n_seeds, 4, n_heads, n_features, n_features).

    Raises:
        ToyError: a seed is out of range.
    """
    shape = (4, config.heads, config.n_features) + ((config.n_features,) if config.beyond.dense else ())
    if len(seeds) and not 0 <= min(seeds) <= max(seeds) <= MAX_SEED:
        raise ToyError(f"seed {min(seeds) if min(seeds) < 0 else max(seeds)} is not between 0 and 2^63 - 1: use others")
    start = np.empty((len(seeds), *shape))
    for row, seed in enumerate(seeds):
        np.random.Generator(np.random.Philox(key=seed)).standard_normal(out=start[row])
    start *= config.alpha * config.beyond.init_scale
    return start


def coefficients(parameters: Array) -> Array:
    """c_hj = o_hj v_hj tanh(q_hj k_hj).

    Args:
        parameters: (..., 4, n_heads, n_features), diagonal projections.

    Returns:
        Shape (..., n_heads, n_features).
    """
    q, k, v, o = (parameters[..., kind, :, :] for kind in range(4))
    return o * v * np.tanh(q * k)


def total(head_coefficients: Array) -> Array:
    """The aggregate w, summed head by head so that the rounding does not depend on the array's layout.

    Args:
        head_coefficients: (..., n_heads, n_features).

    Returns:
        Shape (..., n_features).
    """
    return summed(head_coefficients, axis=-2)


def summed(array: Array, axis: int) -> Array:
    """Sum along one short axis, one entry after another.

    numpy's own sum groups the entries by the memory layout, and so rounds differently for one run than for a thousand.

    Args:
        array: any shape.
        axis: the axis to sum over.

    Returns:
        The shape without that axis.
    """
    first, *others = np.moveaxis(array, axis, 0)
    result = first.copy()
    for other in others:
        result += other
    return result


def gradient(parameters: Array, config: ToyConfig) -> Array:
    """Derivative of J by every scalar, written out.

    Args:
        parameters: (..., 4, n_heads, n_features), diagonal projections.
        config: the model.

    Returns:
        The shape of `parameters`.
    """
    q, k, v, o = (parameters[..., kind, :, :] for kind in range(4))
    tanh = np.tanh(q * k)
    by_aggregate = (config.curvature * (total(o * v * tanh) - config.optimum))[..., None, :]
    by_product = by_aggregate * o * v * (1 - tanh**2)  # by q k
    by_gate = by_aggregate * tanh  # by o v
    return np.stack([by_product * k, by_product * q, by_gate * o, by_gate * v], axis=-3)


def risks(aggregate: Array, config: ToyConfig) -> Risks:
    """Every task's risk as a sum of squared coordinate errors, and the joint objective.

    Args:
        aggregate: w, shape (..., n_features).
        config: the model.

    Returns:
        Risks of shapes (..., n_tasks) and (...).
    """
    visible, target, weight = config.tasks
    task_risks = (visible * (aggregate[..., None, :] - target) ** 2).sum(axis=-1)
    return Risks(task_risks, task_risks @ weight / 2)


def winners(head_coefficients: Array) -> NDArray[np.int64]:
    """The head with the largest coefficient of each feature, by size.

    Args:
        head_coefficients: (..., n_heads, n_features).

    Returns:
        Heads from 0, shape (..., n_features).
    """
    return np.abs(head_coefficients).argmax(axis=-2)


def in_event(winning_heads: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Event E: the conflict feature's winner wins no task-specific feature.

    Args:
        winning_heads: (..., n_features).

    Returns:
        Shape (...).
    """
    return (winning_heads[..., 1:] != winning_heads[..., :1]).all(axis=-1)


def losers(head_coefficients: Array) -> Array:
    """What the other heads than the winner hold of each feature: the sum of their coefficients' sizes.

    Args:
        head_coefficients: (..., n_heads, n_features).

    Returns:
        Shape (..., n_features).
    """
    sizes = np.abs(head_coefficients)
    return np.sort(sizes, axis=-2)[..., :-1, :].sum(axis=-2)


def delete_head(head_coefficients: Array, head: int | NDArray[np.int64], config: ToyConfig) -> Risks:
    """The risks without one head, all else unchanged.

    Args:
        head_coefficients: (..., n_heads, n_features), of one state, a trajectory or a population.
        head: from 0; or one head per leading entry, shape (...).
        config: the model.

    Returns:
        Risks of shapes (..., n_tasks) and (...).

    Raises:
        ToyError: the model has no such head.
    """
    head = np.asarray(head)
    if head.size and not 0 <= head.min() <= head.max() < config.heads:
        raise ToyError(f"head {head.max()} is not in this model: heads go from 0 to {config.heads - 1}")
    index = np.broadcast_to(head, head_coefficients.shape[:-2])[..., None, None]
    removed = np.take_along_axis(head_coefficients, index, axis=-2)[..., 0, :]
    return risks(total(head_coefficients) - removed, config)


def deletion_effects(head_coefficients: Array, config: ToyConfig) -> Effects:
    """What deleting the conflict feature's winner does to the risks, run by run.

    Args:
        head_coefficients: (..., n_heads, n_features).
        config: the model.

    Returns:
        Effects of shape (...).
    """
    before = risks(total(head_coefficients), config)
    after = delete_head(head_coefficients, winners(head_coefficients)[..., 0], config)
    return Effects(before.task_a - after.task_a, after.task_b - before.task_b, after.joint - before.joint)


def predicted_effects(config: ToyConfig) -> Effects:
    """Theorem 4.3: on E the deletion lowers R_A by t^2, raises R_B by 3 t^2 and J by t^2 / 2, each up to O(alpha^4).

    Taken at the optimum, with the winner holding all of the conflict feature, so that other weights and more tasks have
    their own prediction.
    """
    with_head = risks(config.optimum, config)
    without = risks(config.optimum * (np.arange(config.n_features) > 0), config)
    return Effects(with_head.task_a - without.task_a, without.task_b - with_head.task_b, without.joint - with_head.joint)


def predicted_event_probability(config: ToyConfig) -> float:
    """((M - 1) / M)^2: winners are uniform and independent. The power is the number of task-specific features."""
    return ((config.heads - 1) / config.heads) ** (config.n_features - 1)
