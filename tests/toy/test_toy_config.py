"""Settings of the toy model: what they mean, and what is refused, in one line with a remedy."""

import json
import math
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from cel_core.errors import ToyError
from cel_core.toy import config as config_module
from cel_core.toy.config import Beyond, ToyConfig
from cel_core.toy.model import total
from cel_core.toy.training import settled, train


def test_defaults_are_the_proven_model():
    config = ToyConfig()
    assert config.beyond.labels == ()
    np.testing.assert_array_equal(config.optimum, (1, 1, 1))
    np.testing.assert_array_equal(config.curvature, (1, 0.5, 0.5))
    assert config.feature_names == ("U", "V", "W")


@pytest.mark.parametrize(("alpha", "steps"), [(0.1, 4606), (0.05, 23_966)])
def test_checkpoint_is_that_of_the_paper(alpha: float, steps: int):
    config = ToyConfig(alpha=alpha, eta=0.05)
    assert config.checkpoint == math.ceil(math.log(1 / alpha) / (0.05 * alpha**2)) == steps
    assert config.last_step == steps


def test_more_tasks_keep_the_conflicts_optimum_at_half_of_a():
    config = ToyConfig(a=2, b=0.5, c=3, beyond=Beyond(n_tasks=4))
    np.testing.assert_allclose(config.optimum, (1, 0.5, 3, 3, 3))
    np.testing.assert_allclose(config.tasks.target[:, 0], (0, 2 / 3, 4 / 3, 2))
    assert config.feature_names == ("U", "V", "W", "X3", "X4")


BAD = [
    (dict(alpha=0), "alpha 0 is not above 0"),
    (dict(alpha=-0.1), "alpha -0.1 is not above 0"),
    (dict(alpha=1.0), "alpha 1 is not below 1"),
    (dict(alpha=float("nan")), "alpha nan is not a finite number"),
    (dict(alpha=float("inf")), "alpha inf is not a finite number"),
    (dict(alpha="0.1"), "alpha '0.1' is not a finite number"),
    (dict(a=0), "a 0 is not above 0"),
    (dict(b=-1), "b -1 is not above 0"),
    (dict(c=float("nan")), "c nan is not a finite number"),
    (dict(a=1e6), "a 1e\\+06 is not at most 1000"),
    (dict(eta=0), "eta 0 is not above 0"),
    (dict(eta=float("nan")), "eta nan is not a finite number"),
    (dict(eta=2), "eta 2 oscillates or diverges: above 1.037"),
    (dict(eta=0.5, a=8), "eta 0.5 oscillates or diverges: above 0.25"),
    (dict(heads=0), "heads 0 is not between 1 and 64"),
    (dict(heads=2.5), "heads 2.5 is not a whole number"),
    (dict(heads=True), "heads True is not a whole number"),
    (dict(seed=-1), "seed -1 is not between 0"),
    (dict(steps=0), "steps 0 is not between 1"),
    (dict(steps=-5), "steps -5 is not between 1"),
    (dict(steps=1.5), "steps 1.5 is not a whole number"),
    (dict(steps="soon"), "steps 'soon' is not a rule"),
    (dict(steps=10**9), "steps 1000000000 is not between 1"),
    (dict(alpha=1e-3), "needs 1.38e\\+08 steps to its checkpoint"),
    (dict(alpha=1e-200), "to its checkpoint, more than"),
    (dict(alpha=1e-200, steps=10), "alpha 1e-200 is not at least 1e-06"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_a_setting_outside_the_model_is_refused_with_its_value_and_a_remedy(settings: dict, message: str):
    with pytest.raises(ToyError, match=message) as refused:
        ToyConfig(**settings)
    assert "\n" not in str(refused.value)
    assert ": " in str(refused.value) or "; " in str(refused.value)


BAD_BEYOND = [
    (dict(optimizer="sgd"), "optimizer 'sgd' is unknown"),
    (dict(batch_size=-1), "batch_size -1"),
    (dict(label_noise=0.1), "label_noise 0.1 averages out .* set batch_size"),
    (dict(label_noise=float("nan"), batch_size=8), "label_noise nan"),
    (dict(weight_decay=-1), "weight_decay -1 is not at least 0"),
    (dict(init_scale=0), "init_scale 0 is not above 0"),
    (dict(task_weights=(1, 2, 3)), "3 task weights do not fit 2 tasks"),
    (dict(task_weights=(1, 0)), "task weight 0 is not above 0"),
    (dict(n_tasks=1), "n_tasks 1 is not between 2 and 8"),
    (dict(dense=1), "dense 1 is not a switch"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_BEYOND)
def test_a_switch_out_of_range_is_refused(settings: dict, message: str):
    with pytest.raises(ToyError, match=message):
        Beyond(**settings)


def test_converged_is_refused_where_noise_or_decay_keeps_the_run_moving():
    for switches in (dict(batch_size=16), dict(weight_decay=0.1)):
        with pytest.raises(ToyError, match="steps converged is never reached"):
            ToyConfig(steps="converged", beyond=Beyond(**switches))


def test_every_switch_has_a_label_and_equal_weights_have_none():
    every = Beyond(
        dense=True,
        learnt_encoding=True,
        optimizer="adam",
        batch_size=16,
        label_noise=0.5,
        weight_decay=0.01,
        init_scale=3,
        task_weights=(1, 2, 3),
        n_tasks=3,
    )
    assert len(every.labels) == 9
    assert Beyond(task_weights=(2, 2)).labels == ()


def test_settings_survive_json():
    config = ToyConfig(steps="checkpoint", beyond=Beyond(n_tasks=3, task_weights=(1, 2, 3), dense=True))
    assert ToyConfig.from_plain(json.loads(json.dumps(asdict(config)))) == config
    with pytest.raises(ToyError, match="'gamma' is not a setting"):
        ToyConfig.from_plain({"gamma": 1})
    with pytest.raises(ToyError, match="alpha -1"):
        ToyConfig.from_plain({"alpha": -1})


def test_equal_settings_are_written_alike_and_share_their_key():
    plain = ToyConfig(a=2, alpha=0.5, heads=3, steps=40, beyond=Beyond(label_noise=0.0, task_weights=(1, 2)))
    typed = ToyConfig(
        a=np.float64(2.0),
        alpha=float(np.float32(0.5)),
        heads=np.int64(3),  # type: ignore[arg-type]
        steps=np.int32(40),  # type: ignore[arg-type]
        beyond=Beyond(label_noise=-0.0, task_weights=[1.0, np.float64(2)]),  # type: ignore[arg-type]
    )
    assert plain == typed and typed.last_step == 40
    assert json.dumps(asdict(plain)) == json.dumps(asdict(typed))
    assert plain.key("descent") == typed.key("descent")


def test_every_setting_and_every_addition_changes_the_key(monkeypatch: pytest.MonkeyPatch):
    base = ToyConfig(steps=40, beyond=Beyond(batch_size=4))
    switches = dict(
        dense=True,
        learnt_encoding=True,
        optimizer="adam",
        batch_size=5,
        label_noise=0.5,
        weight_decay=0.01,
        init_scale=3,
        task_weights=(1, 2),
        n_tasks=3,
    )
    settings = dict(a=2.5, b=2, c=2, alpha=0.2, eta=0.04, heads=4, steps="checkpoint", seed=1)
    assert {field.name for field in fields(ToyConfig)} == {*settings, "beyond"}
    assert {field.name for field in fields(Beyond)} == set(switches)
    others = [replace(base, **{name: value}) for name, value in settings.items()]
    others += [replace(base, beyond=replace(base.beyond, **{name: value})) for name, value in switches.items()]
    keys = [each.key() for each in (base, *others)] + [base.key("descent"), base.key("flow"), base.key(5), base.key("5")]
    monkeypatch.setattr(config_module, "VERSION", 2)
    keys.append(base.key())
    assert len(set(keys)) == len(keys) == 23


def test_below_the_step_limit_runs_settle_and_above_it_none_does():
    # An initialisation scale next to 1 is the same run without the check of eta on construction.
    unchecked = Beyond(init_scale=1 + 1e-12)
    limit = ToyConfig().step_limit
    shares = {}
    for factor in (0.85, 1.15):
        config = ToyConfig(alpha=0.2, eta=factor * limit, steps=2000, beyond=unchecked)
        conflict = total(train(config, range(200)).coefficients)[:, :1]
        shares[factor] = settled(np.concatenate([conflict, np.ones((200, 2))], axis=1), config, 1e-3).mean()
    assert shares[0.85] > 0.97
    assert shares[1.15] < 0.03


def test_step_limit_is_two_over_the_flattest_winners_curvature():
    # Independently: |grad c|^2 of one head's four scalars on a line of balanced solutions c = 1.
    config = ToyConfig()
    grid = np.linspace(0.05, 6, 20_000)
    tanh = np.tanh(grid)
    gate, key = np.sqrt(1 / tanh), np.sqrt(grid)
    slope = np.stack([gate * tanh, gate * tanh, gate**2 * key * (1 - tanh**2), gate**2 * key * (1 - tanh**2)])
    assert config.step_limit == pytest.approx(2 / (slope**2).sum(axis=0).min(), rel=1e-4)
