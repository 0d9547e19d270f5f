"""The toy model as actual softmax attention, differentiated by autograd: what the closed form is checked against.

1. Coordinate j of the input is the token x_j E_j, with E_j the feature's direction. The memory holds +E_j and -E_j for
   every feature; a fixed mask, the same for all heads, lets token j see its own pair only.
2. Each head attends with query, key, value and output matrices (diagonal ones have zeros elsewhere): softmax over the
   masked scores, values mixed, output projected. There is no scaling of scores, no residual stream and no norm, as in
   the paper.
3. The prediction sums all outputs, over heads, tokens and coordinates. Deleting a head leaves its output out.
4. The risks average the squared errors over all equally likely signs, enumerated: no formula of section 4 is used.

For tests and for the curious; the closed form in `model` is what everything else runs on.
"""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from cel_core.toy.config import Array, ToyConfig


class Attention(NamedTuple):
    """The scalars of one model, float64."""

    matrices: Tensor  # 4 (query, key, value, output), n_heads, n_features, n_features; output index first
    encoding: Tensor  # n_features, n_features; column j is the direction of feature j

    @classmethod
    def of(cls, parameters: Array, encoding: Array | None = None) -> "Attention":
        """From scalars as `model.initial_parameters` lays them out, for one seed.

        Args:
            parameters: (4, n_heads, n_features) diagonals, or (4, n_heads, n_features, n_features) matrices.
            encoding: (n_features, n_features), the unit vectors where not given.
        """
        given = torch.tensor(parameters, dtype=torch.float64)
        matrices = torch.diag_embed(given) if given.ndim == 3 else given
        n_features = matrices.shape[-1]
        directions = torch.eye(n_features).double() if encoding is None else torch.tensor(encoding, dtype=torch.float64)
        return cls(matrices.requires_grad_(), directions.requires_grad_())


def head_outputs(model: Attention, signs: Tensor) -> Tensor:
    """Every head's output at every token.

    Args:
        model: the scalars.
        signs: inputs x, (n_examples, n_features), each +1, -1 or 0.

    Returns:
        Shape (n_examples, n_heads, n_tokens, n_features), one token per feature.
    """
    query, key, value, output = model.matrices
    n_features = len(model.encoding)
    tokens = signs[:, :, None] * model.encoding.T  # n_examples, n_tokens, n_features
    memory = torch.cat([model.encoding.T, -model.encoding.T])  # 2 n_features, n_features
    own_pair = torch.eye(n_features, dtype=torch.bool).repeat(1, 2)  # n_tokens, 2 n_features
    queries = torch.einsum("hij,btj->bhti", query, tokens)
    keys = torch.einsum("hij,mj->hmi", key, memory)
    values = torch.einsum("hij,mj->hmi", value, memory)
    scores = torch.einsum("bhti,hmi->bhtm", queries, keys).masked_fill(~own_pair, float("-inf"))
    mixed = torch.einsum("bhtm,hmi->bhti", scores.softmax(dim=-1), values)
    return torch.einsum("hij,bhtj->bhti", output, mixed)


def predict(model: Attention, signs: Tensor, deleted: int | None = None) -> Tensor:
    """The scalar prediction for every input.

    Args:
        model: the scalars.
        signs: (n_examples, n_features), each +1, -1 or 0.
        deleted: a head to leave out.

    Returns:
        Shape (n_examples,), in target units.
    """
    outputs = head_outputs(model, signs)
    kept = [head for head in range(outputs.shape[1]) if head != deleted]
    return outputs[:, kept].sum(dim=(1, 2, 3))


def task_risks(model: Attention, config: ToyConfig, deleted: int | None = None) -> Tensor:
    """Each task's squared error averaged over all signs; shape (n_tasks,)."""
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=config.n_features)), dtype=torch.float64)
    visible, target = torch.tensor(config.tasks.visible), torch.tensor(config.tasks.target)
    errors = [predict(model, signs * seen, deleted) - signs @ wanted for seen, wanted in zip(visible, target, strict=True)]
    return torch.stack(errors).square().mean(dim=1)


def joint_risk(model: Attention, config: ToyConfig, deleted: int | None = None) -> Tensor:
    """J, half the weighted mean of the task risks; a scalar to call `backward` on."""
    return task_risks(model, config, deleted) @ torch.tensor(config.tasks.weight) / 2
