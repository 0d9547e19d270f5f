"""The closed form against the actual softmax attention, autograd, finite differences, and sums done by hand."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from cel_core.errors import ToyError
from cel_core.toy.attention import Attention, head_outputs, joint_risk, predict, task_risks
from cel_core.toy.config import Beyond, ToyConfig
from cel_core.toy.descent import DiagonalDescent
from cel_core.toy.model import (
    coefficients,
    delete_head,
    deletion_effects,
    gradient,
    in_event,
    initial_parameters,
    losers,
    predicted_effects,
    predicted_event_probability,
    risks,
    summed,
    total,
    winners,
)

MODELS = [
    ToyConfig(alpha=0.9),
    ToyConfig(alpha=0.9, heads=1),
    ToyConfig(alpha=0.9, heads=5, a=3.0, b=0.4, c=1.7),
    ToyConfig(alpha=0.9, heads=4, beyond=Beyond(n_tasks=3, task_weights=(1, 2, 5))),
]


def far_start(config: ToyConfig, seed: int = 11) -> np.ndarray:
    """Scalars of size about 1, where tanh is far from linear."""
    return initial_parameters(config, [seed])[0]


def all_signs(n_features: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product((1.0, 0.0, -1.0), repeat=n_features)), dtype=torch.float64)


@pytest.mark.parametrize("config", MODELS)
def test_each_heads_softmax_output_is_its_closed_coefficient_times_the_sign(config: ToyConfig):
    scalars = far_start(config)
    signs = all_signs(config.n_features)
    outputs = head_outputs(Attention.of(scalars), signs).detach().numpy()  # examples, heads, tokens, features
    by_coordinate = outputs.sum(axis=3)
    np.testing.assert_allclose(by_coordinate, signs[:, None] * coefficients(scalars)[None], atol=1e-14)


@pytest.mark.parametrize("config", MODELS)
def test_softmax_prediction_is_linear_in_the_signs(config: ToyConfig):
    scalars = far_start(config)
    signs = all_signs(config.n_features)
    predicted = predict(Attention.of(scalars), signs).detach().numpy()
    np.testing.assert_allclose(predicted, signs.numpy() @ total(coefficients(scalars)), atol=1e-13)


@pytest.mark.parametrize("config", MODELS)
def test_risks_and_deletions_agree_with_enumerated_squared_errors(config: ToyConfig):
    scalars = far_start(config)
    held, model = coefficients(scalars), Attention.of(scalars)
    closed = risks(total(held), config)
    np.testing.assert_allclose(closed.tasks, task_risks(model, config).detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(closed.joint, joint_risk(model, config).item(), rtol=1e-12)
    for head in range(config.heads):
        without = delete_head(held, head, config)
        np.testing.assert_allclose(without.tasks, task_risks(model, config, head).detach().numpy(), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(without.joint, joint_risk(model, config, head).item(), rtol=1e-12)


@pytest.mark.parametrize("config", MODELS)
def test_hand_written_gradient_equals_autograd_through_the_softmax(config: ToyConfig):
    scalars = far_start(config)
    model = Attention.of(scalars)
    joint_risk(model, config).backward()
    assert model.matrices.grad is not None
    by_autograd = torch.diagonal(model.matrices.grad, dim1=-2, dim2=-1).numpy()
    assert np.abs(by_autograd).max() > 0.1
    np.testing.assert_allclose(gradient(scalars, config), by_autograd, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("config", MODELS[:2])
def test_finite_differences_confirm_both_gradients(config: ToyConfig):
    scalars, width = far_start(config), 1e-5
    closed, softmax = np.empty_like(scalars), np.empty_like(scalars)
    for index in np.ndindex(scalars.shape):
        up, down = scalars.copy(), scalars.copy()
        up[index] += width
        down[index] -= width
        closed[index] = (risks(total(coefficients(up)), config).joint - risks(total(coefficients(down)), config).joint) / (
            2 * width
        )
        with torch.no_grad():
            difference = joint_risk(Attention.of(up), config) - joint_risk(Attention.of(down), config)
        softmax[index] = difference.item() / (2 * width)
    np.testing.assert_allclose(gradient(scalars, config), closed, rtol=1e-6, atol=1e-8)
    model = Attention.of(scalars)
    joint_risk(model, config).backward()
    assert model.matrices.grad is not None
    np.testing.assert_allclose(torch.diagonal(model.matrices.grad, dim1=-2, dim2=-1).numpy(), softmax, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("config", MODELS)
def test_descent_trains_like_autograd_on_the_softmax_model(config: ToyConfig):
    diagonal = torch.eye(config.n_features, dtype=torch.float64)
    model = Attention.of(far_start(config))
    for _ in range(60):
        joint_risk(model, config).backward()
        with torch.no_grad():
            assert model.matrices.grad is not None
            model.matrices.sub_(config.eta * model.matrices.grad * diagonal)
            model.matrices.grad = None
    closed = DiagonalDescent(config, [11])
    begun = closed.coefficients()
    closed.advance(60)
    trained = torch.diagonal(model.matrices.detach(), dim1=-2, dim2=-1).numpy()
    assert np.abs(closed.coefficients() - begun).max() > 0.05
    np.testing.assert_allclose(closed.coefficients()[0], coefficients(trained), rtol=1e-9, atol=1e-12)


def test_descent_step_is_eta_times_the_hand_written_gradient():
    config = ToyConfig(alpha=0.5, heads=4)
    scalars = initial_parameters(config, [3, 4])
    for _ in range(25):
        scalars = scalars - config.eta * gradient(scalars, config)
    dynamics = DiagonalDescent(config, [3, 4])
    dynamics.advance(25)
    np.testing.assert_allclose(dynamics.coefficients(), coefficients(scalars), rtol=1e-12)
    np.testing.assert_allclose(dynamics.largest(), np.abs(scalars).max(axis=(1, 2, 3)), rtol=1e-12)


def test_risks_at_the_optimum_are_t_squared_each():
    at_optimum = risks(np.array([1.0, 1.0, 1.0]), ToyConfig(a=2, b=1, c=1))
    assert (at_optimum.task_a, at_optimum.task_b, at_optimum.joint) == (1.0, 1.0, 0.5)
    elsewhere = risks(np.array([0.5, 3.0, -1.0]), ToyConfig(a=2, b=1, c=4))
    assert (elsewhere.task_a, elsewhere.task_b) == (0.25 + 4, 2.25 + 25)
    assert elsewhere.joint == (4.25 + 27.25) / 4


def test_deleting_the_conflict_head_drops_a_by_t2_and_raises_b_by_3t2_and_j_by_half_t2():
    config = ToyConfig(a=3, b=0.5, c=0.7)
    localized = np.array([[0.0, 0.5, 0.0], [1.5, 0.0, 0.0], [0.0, 0.0, 0.7]])
    effects = deletion_effects(localized, config)
    np.testing.assert_allclose(effects, (2.25, 6.75, 1.125))
    np.testing.assert_allclose(predicted_effects(config), (2.25, 6.75, 1.125))
    without = delete_head(localized, 1, config)
    np.testing.assert_allclose((without.task_a, without.task_b), (0, 9))


def test_prediction_follows_task_weights():
    # With weights 1 to 3, U's optimum is 3/4 of a = 2: R_A falls by 1.5^2, R_B rises from 0.5^2 to 2^2.
    config = ToyConfig(a=2, beyond=Beyond(task_weights=(1, 3)))
    np.testing.assert_allclose(config.optimum, (1.5, 1, 1))
    np.testing.assert_allclose(predicted_effects(config)[:2], (2.25, 3.75))


def test_winners_losers_and_the_event_on_small_cases():
    held = np.array([[0.9, 0.01, -0.02], [0.03, 0.8, 0.0], [-0.04, 0.02, 0.7]])
    assert winners(held).tolist() == [0, 1, 2]
    np.testing.assert_allclose(losers(held), (0.07, 0.03, 0.02))
    assert in_event(np.array([[0, 1, 2], [0, 1, 1], [0, 0, 1], [2, 1, 2], [1, 1, 1]])).tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert winners(np.array([[0.1], [-0.9]])).tolist() == [1]


@pytest.mark.parametrize(("heads", "probability"), [(1, 0), (2, 1 / 4), (3, 4 / 9), (6, 25 / 36)])
def test_predicted_event_probability(heads: int, probability: float):
    assert predicted_event_probability(ToyConfig(heads=heads)) == pytest.approx(probability)


def test_deleting_a_head_for_each_run_matches_one_at_a_time():
    config = ToyConfig(alpha=0.9)
    held = coefficients(initial_parameters(config, range(6)))
    heads = np.array([0, 1, 2, 2, 1, 0])
    together = delete_head(held, heads, config).tasks
    np.testing.assert_array_equal(together, [delete_head(held[row], int(head), config).tasks for row, head in enumerate(heads)])


@pytest.mark.parametrize("head", [-1, 3])
def test_a_head_outside_the_model_is_refused(head: int):
    with pytest.raises(ToyError, match="heads go from 0 to 2"):
        delete_head(np.zeros((3, 3)), head, ToyConfig())


def test_initialisation_is_alpha_times_a_standard_normal_of_its_own_for_every_seed():
    config = ToyConfig(alpha=0.2)
    many = initial_parameters(config, range(500))
    assert many.std() == pytest.approx(0.2, rel=0.03)
    assert abs(many.mean()) < 0.2 * 4 / np.sqrt(many.size)
    assert len(np.unique(many)) == many.size
    np.testing.assert_array_equal(initial_parameters(config, [317])[0], many[317])
    neighbours = np.corrcoef(many[:-1].ravel(), many[1:].ravel())[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(many.size)


def test_seeds_out_of_range_are_refused():
    with pytest.raises(ToyError, match="seed -1"):
        initial_parameters(ToyConfig(), [0, -1])


def test_all_but_the_softmax_model_does_without_torch():
    asked = "import sys; from cel_core import toy; toy.run(toy.ToyConfig(steps=9)); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "False\n"


def test_sums_do_not_depend_on_the_layout():
    values = np.random.default_rng(0).normal(size=(1000, 20, 3))
    alone = np.stack([summed(each.copy(), axis=0) for each in values])
    other_layout = summed(np.ascontiguousarray(np.moveaxis(values, 0, -1)), axis=0).T
    np.testing.assert_array_equal(alone, summed(values, axis=1))
    np.testing.assert_array_equal(alone, other_layout)
