"""Beyond the theorems: every switch against torch on the actual softmax model, and what each does to the statements."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cel_core.toy.attention import Attention, head_outputs, joint_risk, predict, task_risks
from cel_core.toy.config import Beyond, ToyConfig
from cel_core.toy.descent import DiagonalDescent
from cel_core.toy.model import coefficients, initial_parameters, risks, total
from cel_core.toy.population import populate
from cel_core.toy.projections import FullProjections, projections
from cel_core.toy.trajectory import run
from cel_core.toy.variants import Batches, Moments, VariedDescent

READINGS = [
    Beyond(),
    Beyond(dense=True),
    Beyond(learnt_encoding=True),
    Beyond(dense=True, learnt_encoding=True, n_tasks=3, task_weights=(1, 2, 3)),
]


def rugged(config: ToyConfig) -> tuple[FullProjections, Attention]:
    """The same random model as closed projections and as softmax attention, its encoding away from the unit vectors."""
    closed = FullProjections(config, initial_parameters(config, [3]))
    if config.beyond.learnt_encoding:
        closed.encoding = closed.encoding + np.random.default_rng(0).normal(0, 0.3, closed.encoding.shape)
    matrices = np.ascontiguousarray(closed.matrices[..., 0])
    return closed, Attention.of(matrices, closed.encoding[..., 0])


@pytest.mark.parametrize("beyond", READINGS)
def test_coefficients_of_full_projections_are_those_of_the_softmax(beyond: Beyond):
    config = ToyConfig(heads=4, alpha=0.9, beyond=beyond)
    closed, softmax = rugged(config)
    held = closed.coefficients()[..., 0]
    signs = torch.tensor(np.random.default_rng(1).choice([-1.0, 0.0, 1.0], (30, config.n_features)))
    by_head = head_outputs(softmax, signs).sum(dim=(2, 3)).detach().numpy()
    np.testing.assert_allclose(by_head, signs.numpy() @ held.T, atol=1e-12)
    np.testing.assert_allclose(risks(total(held), config).tasks, task_risks(softmax, config).detach().numpy(), rtol=1e-11)


@pytest.mark.parametrize("beyond", READINGS)
def test_gradient_of_full_projections_is_autograds(beyond: Beyond):
    config = ToyConfig(heads=4, alpha=0.9, beyond=beyond)
    closed, softmax = rugged(config)
    joint_risk(softmax, config).backward()
    slope = config.curvature[:, None] * (total(np.moveaxis(closed.coefficients(), -1, 0)).T - config.optimum[:, None])
    by_matrices, by_encoding = closed.gradient(slope)
    assert softmax.matrices.grad is not None and softmax.encoding.grad is not None
    expected = softmax.matrices.grad.numpy() * (1 if beyond.dense else np.eye(config.n_features))
    np.testing.assert_allclose(by_matrices[..., 0], expected, rtol=1e-9, atol=1e-11)
    assert (by_encoding is not None) == beyond.learnt_encoding
    if by_encoding is not None:
        assert np.abs(by_encoding).max() > 0.1
        np.testing.assert_allclose(by_encoding[..., 0], softmax.encoding.grad.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "beyond",
    [
        Beyond(dense=True),
        Beyond(learnt_encoding=True),
        Beyond(weight_decay=0.3),
        Beyond(optimizer="adam"),
        Beyond(optimizer="adam", dense=True, learnt_encoding=True, weight_decay=0.2),
        Beyond(dense=True, weight_decay=0.1, n_tasks=3, task_weights=(3, 1, 1), init_scale=1.5),
    ],
)
def test_training_follows_torchs_optimizer_on_the_softmax_model(beyond: Beyond):
    config = ToyConfig(alpha=0.6, beyond=beyond)
    n_steps, seed = 40, 9
    closed = VariedDescent(config, [seed])
    begun = closed.coefficients()
    closed.advance(n_steps)

    model = Attention.of(initial_parameters(config, [seed])[0])
    kind = torch.optim.AdamW if beyond.optimizer == "adam" else torch.optim.SGD
    groups = [{"params": [model.matrices], "weight_decay": beyond.weight_decay}]
    if beyond.learnt_encoding:
        groups.append({"params": [model.encoding], "weight_decay": 0.0})
    optimizer = kind(groups, lr=config.eta)
    for _ in range(n_steps):
        optimizer.zero_grad()
        joint_risk(model, config).backward()
        assert model.matrices.grad is not None
        if not beyond.dense:
            model.matrices.grad *= torch.eye(config.n_features, dtype=torch.float64)
        optimizer.step()
    with torch.no_grad():
        signs = torch.eye(config.n_features, dtype=torch.float64)
        trained = head_outputs(model, signs).sum(dim=(2, 3)).T  # heads, features
    assert np.abs(closed.coefficients() - begun).max() > 0.02
    np.testing.assert_allclose(closed.coefficients()[0], trained.numpy(), rtol=1e-6, atol=1e-9)


def test_with_every_switch_off_the_general_update_is_the_proven_one():
    config, seeds = ToyConfig(alpha=0.4), range(20)
    assert type(projections(config, initial_parameters(config, seeds))).__name__ == "DiagonalProjections"
    general, proven = VariedDescent(config, seeds), DiagonalDescent(config, seeds)
    general.advance(300)
    proven.advance(300)
    np.testing.assert_allclose(general.coefficients(), proven.coefficients(), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(general.largest(), proven.largest(), rtol=1e-9)


def test_sampled_moments_have_the_distribution_of_drawn_examples():
    size, noise, n_draws = 8, 0.7, 6000
    config = ToyConfig(beyond=Beyond(batch_size=size, label_noise=noise))
    batches = Batches(config, range(n_draws))
    drawn = np.stack(batches.draw())[:, 0]  # 3 moments of task A, one per run
    rng = np.random.default_rng(5)
    conflict, own = rng.choice([-1.0, 1.0], (2, n_draws, size))
    error = rng.normal(0, noise, (n_draws, size))
    direct = np.stack([(conflict * own).mean(1), (error * conflict).mean(1), (error * own).mean(1)])
    np.testing.assert_allclose(drawn.mean(axis=1), 0, atol=5 / np.sqrt(size * n_draws))
    np.testing.assert_allclose(np.cov(drawn), np.cov(direct), atol=0.012)
    # Given the correlation of the signs, both projected noises correlate by it.
    np.testing.assert_allclose((drawn[0] * drawn[1] * drawn[2]).mean(), noise**2 / size**2, rtol=0.2)
    np.testing.assert_allclose((direct[0] * direct[1] * direct[2]).mean(), noise**2 / size**2, rtol=0.2)


@pytest.mark.parametrize("beyond", [Beyond(batch_size=6, label_noise=0.8), Beyond(batch_size=6, n_tasks=3)])
def test_a_sampled_step_is_autograds_on_the_examples_behind_the_moments(beyond: Beyond, monkeypatch: pytest.MonkeyPatch):
    config = ToyConfig(alpha=0.9, eta=0.5, beyond=beyond)
    visible, target, weight = (torch.tensor(part) for part in config.tasks)
    rng = np.random.default_rng(8)
    n_tasks, own = config.beyond.n_tasks, np.arange(1, config.n_features)
    signs = rng.choice([-1.0, 1.0], (n_tasks, 6, config.n_features))
    noise = rng.normal(0, 0.8, (n_tasks, 6))
    own_signs = signs[np.arange(n_tasks), :, own]
    moments = Moments(
        (signs[..., 0] * own_signs).mean(axis=1)[:, None],
        (noise * signs[..., 0]).mean(axis=1)[:, None],
        (noise * own_signs).mean(axis=1)[:, None],
    )
    monkeypatch.setattr(Batches, "draw", lambda self: moments)
    closed = VariedDescent(config, [9])
    closed.advance(1)

    model = Attention.of(initial_parameters(config, [9])[0])
    examples = torch.tensor(signs)
    losses = [
        (predict(model, examples[task] * visible[task]) - examples[task] @ target[task] - torch.tensor(noise[task]))
        .square()
        .mean()
        for task in range(n_tasks)
    ]
    (torch.stack(losses) @ weight / 2).backward()
    assert model.matrices.grad is not None
    stepped = (model.matrices - config.eta * model.matrices.grad).detach()
    expected = coefficients(torch.diagonal(stepped, dim1=-2, dim2=-1).numpy())
    np.testing.assert_allclose(closed.coefficients()[0], expected, rtol=1e-10, atol=1e-13)


def test_large_batches_approach_the_population_gradient():
    exact = populate(ToyConfig(alpha=0.3, steps=400), 20).coefficients
    errors = []
    for size in (10_000, 1_000_000):
        sampled = populate(ToyConfig(alpha=0.3, steps=400, beyond=Beyond(batch_size=size)), 20).coefficients
        errors.append(np.abs(sampled - exact).max())
    assert errors[1] < errors[0] / 4 and errors[0] > 1e-5


@pytest.mark.parametrize(
    "beyond",
    [
        Beyond(dense=True),
        Beyond(learnt_encoding=True),
        Beyond(optimizer="adam", batch_size=8, label_noise=0.3, weight_decay=0.01),
    ],
)
def test_varied_runs_do_not_depend_on_the_population_either(beyond: Beyond):
    config = ToyConfig(alpha=0.3, steps=300, heads=9, beyond=beyond)
    crowd = populate(config, 12).coefficients
    np.testing.assert_array_equal(populate(replace(config, seed=7), 1).coefficients[0], crowd[7])
    np.testing.assert_array_equal(populate(replace(config, seed=2), 5).coefficients, crowd[2:7])
    np.testing.assert_array_equal(run(replace(config, seed=7)).coefficients[-1], crowd[7])


def test_a_diverged_run_does_not_disturb_the_noise_of_the_others():
    beyond = Beyond(batch_size=4, label_noise=0.1, init_scale=40)
    config = ToyConfig(steps=300, beyond=beyond)
    crowd = populate(config, 40)
    assert 0 < crowd.diverged.sum() < 40
    sound = int(np.flatnonzero(~crowd.diverged)[-1])
    np.testing.assert_array_equal(populate(replace(config, seed=sound), 1).coefficients[0], crowd.coefficients[sound])


def test_dense_projections_tie_the_winners_together():
    # Outside the theorem: features share a head's rows, so that one head tends to win all, and E becomes rare.
    runs = populate(ToyConfig(alpha=0.15, beyond=Beyond(dense=True)), 200)
    assert runs.converged().mean() > 0.9
    assert runs.summary().pr_event < 0.3


def test_adam_spreads_a_feature_over_the_heads():
    runs = populate(ToyConfig(eta=0.01, steps=1000, beyond=Beyond(optimizer="adam")), 100)
    assert runs.converged().mean() > 0.9
    assert runs.summary().loser_median > 0.2


def test_weight_decay_pulls_the_aggregate_below_its_optimum():
    runs = populate(ToyConfig(alpha=0.3, steps=3000, beyond=Beyond(weight_decay=0.02)), 50)
    aggregate = np.median(total(runs.coefficients), axis=0)
    assert ((0.9 < aggregate) & (aggregate < 0.99)).all()


def test_four_tasks_follow_the_general_prediction():
    runs = populate(ToyConfig(alpha=0.3, steps="converged", beyond=Beyond(n_tasks=4)), 1000)
    summary = runs.summary()
    assert summary.pr_event_predicted == pytest.approx((2 / 3) ** 4)
    assert abs(summary.pr_event - summary.pr_event_predicted) < 3 * summary.pr_event_se
    assert summary.task_a_drop is not None and summary.task_a_drop.median == pytest.approx(1, abs=0.01)
