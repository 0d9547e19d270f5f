"""How heads read features: the proven diagonal projections, or full ones and learnt encodings beyond the theorems.

1. Feature j is the direction E_j (fixed: the j-th unit vector). Its query is x_j E_j, its memory pair +E_j and -E_j,
   seen under the same fixed mask as in the theorems, and the prediction sums the output's coordinates.
2. On signs the model stays linear, with c_hj = (1 . O V E_j) tanh((Q E_j) . (K E_j)) for each head's matrices. With
   diagonal matrices and fixed encoding this is c_hj = o_hj v_hj tanh(q_hj k_hj).
3. Gradients are written by hand; `attention` differentiates the softmax model by autograd, and the tests compare.

Not covered: tokens that see other features' memory, which would make the prediction nonlinear in the signs.
"""

import numpy as np
from numpy.typing import NDArray

from cel_core.toy.config import Array, ToyConfig
from cel_core.toy.model import summed


class DiagonalProjections:
    """Diagonal matrices and fixed encoding, as in the theorems: matrices are (4, n_heads, n_features, n_seeds)."""

    def __init__(self, start: Array) -> None:
        """Start from `initial_parameters`, of shape (n_seeds, 4, n_heads, n_features)."""
        self.matrices = np.ascontiguousarray(np.moveaxis(start, 0, -1))
        self.encoding = np.empty((0, 0, len(start)))  # fixed, and not needed

    def coefficients(self) -> Array:
        """c_hj, shape (n_heads, n_features, n_seeds)."""
        query, key, value, output = self.matrices
        return output * value * np.tanh(query * key)

    def gradient(self, by_aggregate: Array) -> tuple[Array, None]:
        """Derivatives of J by the matrices, from dJ/dw of shape (n_features, n_seeds)."""
        query, key, value, output = self.matrices
        tanh = np.tanh(query * key)
        by_gate = by_aggregate * tanh
        by_score = by_aggregate * output * value * (1 - tanh**2)
        return np.stack([by_score * key, by_score * query, by_gate * output, by_gate * value]), None

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with some of the runs only."""
        self.matrices = np.ascontiguousarray(self.matrices[..., rows])
        self.encoding = self.encoding[..., rows]


class FullProjections:
    """The scalars of a block of runs, and how the aggregate's gradient reaches each of them.

    All matrices are (4, n_heads, n_features, n_features, n_seeds), output index first; diagonal ones have zeros
    elsewhere, and their gradient is cut to the diagonal.
    """

    def __init__(self, config: ToyConfig, start: Array) -> None:
        """Start from `initial_parameters`, of shape (n_seeds, 4, n_heads, n_features[, n_features])."""
        n = config.n_features
        matrices = start if config.beyond.dense else start[..., None] * np.eye(n)
        self.matrices = np.ascontiguousarray(np.moveaxis(matrices, 0, -1))
        self.encoding = np.repeat(np.eye(n)[..., None], len(start), axis=-1)  # column j: E_j
        self._diagonal = None if config.beyond.dense else np.eye(n)[None, None, :, :, None]
        self._learnt = config.beyond.learnt_encoding

    def _forward(self) -> tuple[Array, Array, Array, Array, Array]:
        """Q E, K E, V E (n_heads, n_features, n_features, n_seeds), then 1 . O V E_j and the tanh."""
        projected = self.matrices[:3]
        if self._learnt:
            projected = summed(projected[..., None, :] * self.encoding, axis=-3)
        query, key, value = projected
        read_out = summed(self.matrices[3], axis=1)  # n_heads, n_features, n_seeds: 1 . O
        gate = summed(read_out[:, :, None] * value, axis=1)
        return query, key, value, gate, np.tanh(summed(query * key, axis=1))

    def coefficients(self) -> Array:
        """c_hj, shape (n_heads, n_features, n_seeds)."""
        *_, gate, tanh = self._forward()
        return gate * tanh

    def gradient(self, by_aggregate: Array) -> tuple[Array, Array | None]:
        """Derivatives of J.

        Args:
            by_aggregate: dJ/dw, shape (n_features, n_seeds).

        Returns:
            By the matrices, and by the encoding where that is learnt.
        """
        query, key, value, gate, tanh = self._forward()
        by_gate = (by_aggregate * tanh)[:, None]  # n_heads, 1, n_features, n_seeds
        by_score = (by_aggregate * gate * (1 - tanh**2))[:, None]
        by_value = summed(self.matrices[3], axis=1)[:, :, None] * by_gate
        projected = np.stack([by_score * key, by_score * query, by_value])  # by Q E, K E, V E
        by_read_out = summed(value * by_gate, axis=2)  # the same for every row of O
        by_encoding = None
        by_matrices = np.empty_like(self.matrices)
        by_matrices[3] = by_read_out[:, None]
        if self._learnt:
            by_matrices[:3] = summed(projected[:, :, :, None] * self.encoding, axis=-2)
            by_product = self.matrices[:3, :, :, :, None] * projected[:, :, :, None]
            by_encoding = summed(by_product.reshape(-1, *self.encoding.shape), axis=0)
        else:
            by_matrices[:3] = projected
        if self._diagonal is not None:
            by_matrices *= self._diagonal
        return by_matrices, by_encoding

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with some of the runs only."""
        self.matrices = np.ascontiguousarray(self.matrices[..., rows])
        self.encoding = np.ascontiguousarray(self.encoding[..., rows])


Projections = DiagonalProjections | FullProjections
"""The scalars of a block of runs (n_seeds is the last axis), and how the aggregate's gradient reaches each."""


def projections(config: ToyConfig, start: Array) -> Projections:
    """The projections that the configuration asks for, at the scalars of `model.initial_parameters`."""
    if config.beyond.dense or config.beyond.learnt_encoding:
        return FullProjections(config, start)
    return DiagonalProjections(start)
