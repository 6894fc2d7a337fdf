"""Attacks of foolbox, torchattacks and ART, and functions, as attacks of lipforge: the real packages."""

import random
from functools import partial
from typing import Any

import foolbox
import numpy as np
import pytest
import torch
from art.attacks.evasion import BasicIterativeMethod, CarliniL2Method, DeepFool, ProjectedGradientDescentPyTorch
from torch import Tensor, nn

import lipforge as lf
from lipforge.attacks import AttackState, Foreign, margin
from lipforge.attacks.adapters import Watched
from lipforge.errors import AttackError, InputError, ModelError
from tests.attacks.foreign import EPS, FGSMS, PGDS, THREAT, MyL2, evaluated, far, torchattacks
from tests.attacks.oracles import linear_oracle, small_images, small_net


@pytest.mark.parametrize("tool", FGSMS)
def test_one_step_on_a_linear_model_is_optimal(tool):
    model, x, y = linear_oracle()
    model, x = model.float(), x.float()
    result = FGSMS[tool].run(model, x, y, threat=THREAT)
    expected = model.worst_margin(x, y, EPS, "linf")
    torch.testing.assert_close(margin(model(result.images), y), expected, atol=1e-4, rtol=1e-4)  # float32
    assert torch.equal(result.broken, expected < 0)
    assert 0 < result.broken.sum() < len(x)


@pytest.mark.parametrize("tool", FGSMS)
def test_one_step_breaks_the_images_that_ours_breaks(tool):
    assert [word == "robust" for word in evaluated(FGSMS[tool], threat=THREAT).outcome] == [
        word == "robust" for word in evaluated("fgsm", threat=THREAT).outcome
    ]


@pytest.fixture(scope="module")
def pgd_of_ours() -> lf.RobustResult:
    return on_real_images("pgd:steps=5")


def on_real_images(attack: Any) -> lf.RobustResult:
    data = lf.take(lf.load_data("cifar10-sample"), 30)
    return lf.evaluate(lf.load_model("cifar10-resnet"), data, attack, THREAT, show_progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("tool", PGDS)
def test_pgd_leaves_about_as_many_robust_as_ours(tool, pgd_of_ours):
    found = on_real_images(PGDS[tool])
    assert 8 <= pgd_of_ours.robust_count <= 26
    assert abs(found.robust_count - pgd_of_ours.robust_count) <= 1  # the random starts differ
    assert not found.unreliable


@pytest.mark.parametrize("attack", [FGSMS["art"], foolbox.attacks.L2FastGradientAttack()], ids=["art", "foolbox"])
def test_the_threat_gives_the_norm_and_eps(attack):
    threat = lf.Threat("l2", 0.1)
    found, ours = (evaluated(each, threat=threat) for each in (attack, "fgsm"))
    assert found.robust == ours.robust
    assert 0 < ours.robust_count < ours.count


def test_points_outside_the_ball_gain_nothing():
    result = evaluated(far)
    (note,) = [note for note in result.notes if note.kind == "outside"]
    assert result.robust_count == result.count == note.count
    assert "got a point of far outside the threat" in note.text
    assert result.unreliable


def test_points_outside_the_unit_range_gain_nothing():
    result = evaluated(lambda model, x, y: x.where(x > 0.01, -0.001), threat=lf.Threat("linf", 0.02))
    assert result.robust_count == result.count
    assert [note.kind for note in result.notes] == ["outside"]


def test_only_images_that_are_classified_correctly_are_attacked():
    seen: list[int] = []

    def watch(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(x))
        return x

    net = small_net()
    x, y = small_images(net)
    y[:4] = (y[:4] + 1) % 4
    lf.evaluate(net, (x, y), watch, THREAT, show_progress=False)
    assert seen == [20]


def with_threat(model: nn.Module, x: Tensor, y: Tensor, threat: lf.Threat) -> Tensor:
    return lf.FGSM()(model, x, y, threat=threat)


def with_default(model: nn.Module, x: Tensor, y: Tensor, eps: float = 0.01, *, threat: Any = None) -> Tensor:
    assert eps == 0.01
    return with_threat(model, x, y, threat)


class Object:
    def __call__(self, *arguments: Any) -> Tensor:
        return with_threat(*arguments)


FUNCTIONS: dict[str, Any] = {
    "(model, x, y)": lambda model, x, y: with_threat(model, x, y, lf.Threat("linf", 0.01)),
    "(model, x, y, threat)": with_threat,
    "a setting with a default": with_default,
    "partial": partial(with_threat, threat=lf.Threat("linf", 0.01)),
    "any arguments": Object(),
}


@pytest.mark.parametrize("form", FUNCTIONS)
def test_a_function_is_an_attack(form):
    assert evaluated(FUNCTIONS[form]).robust == evaluated("fgsm").robust


@pytest.mark.parametrize("tool", [name for name in FGSMS if name != "a function"])
def test_every_pass_is_counted(tool):
    net, seen = small_net(), []
    x, y = small_images(net)
    net.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    result = FGSMS[tool].run(net, x, y, threat=THREAT)
    assert int(result.forwards.sum()) == sum(seen)
    assert result.backwards.tolist() == [1] * len(x)


def test_random_numbers_are_the_same_again_and_those_of_the_caller_are_not_touched():
    noise = lf.Threat("linf", 0.2)

    def draws(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        drawn.append((torch.rand(()).item(), np.random.rand(), random.random()))
        return x

    drawn: list[Any] = []
    before = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()
    for seed in (0, 0, 1):
        evaluated(draws, seed=seed, threat=noise)
    assert drawn[0] == drawn[1]
    assert all(first != second for first, second in zip(drawn[1], drawn[2], strict=True))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (repr(np.random.get_state()), random.getstate()) == before[1:]


def test_an_error_in_the_attack_names_it():
    message = r"the attack art.ProjectedGradientDescentPyTorch\(max_iter=-1\) failed: ValueError: .*iterations"
    with pytest.raises(AttackError, match=message):
        evaluated(lf.from_art(ProjectedGradientDescentPyTorch, max_iter=-1))
    with pytest.raises(InputError, match=r"must return images of the shape \(24, 3, 6, 6\), .*got NoneType"):
        evaluated(lambda model, x, y: None)


def test_an_error_of_the_model_stays_its_own():
    net = small_net()

    def moody(x: Tensor) -> Tensor:
        return x if x.requires_grad else net(x)

    with pytest.raises(ModelError, match="must return logits"):
        FGSMS["foolbox"].run(moody, *small_images(net), threat=THREAT)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (torchattacks.PGD(small_net()), r"attack must be an attack such as .*lf.from_torchattacks\(torchattacks.PGD\)"),
        (torchattacks.PGD, "attack must be an attack such as"),
        (lf.PGD, "attack must be an attack such as"),
        (3, "attack must be an attack such as .* got 3"),
        ("pdg", "attack must be one of fgsm, pgd"),
    ],
    ids=["bound to a model", "a class", "a class of ours", "a number", "a misspelled text"],
)
def test_what_is_no_attack_is_named(attack, message):
    with pytest.raises(InputError, match=message):
        evaluated(attack)


def test_eps_and_norm_are_not_settings():
    with pytest.raises(InputError, match="settings must not have 'eps'"):
        lf.from_torchattacks(torchattacks.PGD, eps=0.1)
    with pytest.raises(InputError, match=r"foolbox.L2FastGradientAttack\(.*works in l2, and the threat is linf 8/255"):
        evaluated(foolbox.attacks.L2FastGradientAttack(), threat=THREAT)


@pytest.mark.parametrize(
    ("attack", "threat"),
    [
        (lf.from_torchattacks(torchattacks.PGDL2), "linf"),
        (lf.from_torchattacks(MyL2), "linf"),
        (lf.from_torchattacks(lambda model, **settings: torchattacks.PGDL2(model, **settings)), "linf"),
        (lf.from_torchattacks(torchattacks.CW), "linf"),
        (lf.from_torchattacks(torchattacks.OnePixel), "linf"),
        (lf.from_torchattacks(torchattacks.PGD), "l2"),
        (lf.from_torchattacks(torchattacks.APGD), "l1"),
        (lf.from_torchattacks(lambda model, **settings: torchattacks.APGD(model, **settings)), "l2"),
        (lf.from_art(DeepFool), "linf"),
        (lf.from_art(CarliniL2Method), "linf"),
        (lf.from_art(BasicIterativeMethod), "l2"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_attack_of_another_norm_is_refused(attack, threat):
    with pytest.raises(InputError, match=rf"works in l.*, and the threat is {threat} 0.1; take the attack for"):
        evaluated(attack, threat=lf.Threat(threat, 0.1), count=2)


@pytest.mark.parametrize(
    ("attack", "threat"),
    [
        (lf.from_torchattacks(torchattacks.PGDL2, steps=1), "l2"),
        (lf.from_torchattacks(torchattacks.APGD, steps=1), "l2"),
        (lf.from_art(BasicIterativeMethod, max_iter=1, eps_step=0.1), "linf"),
        (lf.from_art(DeepFool, max_iter=1), "l2"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_attack_of_the_threats_norm_runs(attack, threat):
    assert evaluated(attack, threat=lf.Threat(threat, 0.1), count=2).count == 2


def test_it_is_one_attack_of_a_cascade():
    result = evaluated(lf.Cascade((lf.FGSM(step_size=0.1), PGDS["foolbox"])), threat=THREAT)
    assert [stage.attack for stage in result.stages] == ["clean", "fgsm:step_size=0.1", PGDS["foolbox"].name]
    assert result.stages[-1].robust < result.stages[1].robust


@pytest.mark.parametrize(
    "attack", ["pgd:steps=2", "fgsm", FGSMS["foolbox"], far], ids=["pgd", "fgsm", "foolbox", "far"]
)
@pytest.mark.parametrize("kind", ["softmax", "random_outputs"])
def test_a_softmax_and_random_outputs_are_noted_for_every_attack(attack, kind):
    net = small_net()

    def softmax(x: Tensor) -> Tensor:
        return net(x).softmax(dim=1)

    def noisy(x: Tensor) -> Tensor:
        return net(x) + 0.01 * torch.rand(len(x), 4)

    model = {"softmax": softmax, "random_outputs": noisy}[kind]
    result = lf.evaluate(model, small_images(net), attack, lf.Threat("linf", 0.0001), batch_size=8, show_progress=False)
    assert [note.kind for note in result.notes if note.kind != "outside"] == [kind]
    assert result.unreliable


def test_eot_iterations_expect_random_outputs():
    net = small_net()
    model = lambda x: net(x) + 0.01 * torch.rand(len(x), 4)  # noqa: E731
    result = lf.evaluate(
        model, small_images(net), "apgd:steps=2,eot_iter=2", lf.Threat("linf", 1e-4), show_progress=False
    )
    assert "random_outputs" not in [note.kind for note in result.notes]


def test_an_audit_takes_attacks_of_other_tools_text_and_functions_of_three_arguments():
    net = small_net()
    weak = lf.PGD(steps=1, step_size=1e-6, random_start=False)
    plan = lf.auditing.plan.Plan(weak, weak, weak, full=weak, refine=1, check_images=0)
    for attack in (FGSMS["foolbox"], "fgsm", lambda model, x, y: lf.FGSM()(model, x, y, threat=THREAT)):
        report = lf.audit(net, net, small_images(net), THREAT, plan=plan, attack=attack, show_progress=False)
        assert report.candidate_outcome.count("your attack") > 0


def test_the_watched_model_has_the_attributes_of_the_model():
    net = small_net()
    watched = Watched(net, torch.zeros(1, dtype=torch.float64))
    assert watched.append == net.append
    with pytest.raises(AttributeError, match="nothing"):
        _ = watched.nothing


def test_a_function_may_make_views_of_the_model_it_gets():
    net = small_net()
    x, y = small_images(net)
    lf.forge_(net, x, ratio=0.5, rules=["name:4"], show_progress=False)
    seen = []

    def bpda(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        view = lf.straight_through(model)
        seen.append(torch.equal(view(x), net(x)))
        return lf.FGSM()(view, x, y, threat=THREAT)

    found = lf.evaluate(net, (x, y), bpda, THREAT, show_progress=False)
    assert seen == [True]
    ours = lf.FGSM().run(lf.straight_through(net), x, y, threat=THREAT)
    assert found.robust == (~ours.broken).tolist()


def test_a_factory_of_any_settings_gets_eps():
    attack = lf.from_torchattacks(lambda model, **settings: torchattacks.FGSM(model, **settings))
    assert evaluated(attack, threat=lf.Threat("linf", 0.001)).notes == ()
    assert attack.name == "torchattacks.<lambda>()"


def test_an_attack_without_images_left_asks_nothing():
    net = small_net()
    x, y = small_images(net)
    state = AttackState(net, x, (y + 1) % 4, threat=THREAT, seed=0, sample_ids=torch.arange(len(x)))
    state.clean_logits()
    Foreign("never", far).attack(state)  # type: ignore[arg-type]  # it would be called with one argument too many
    assert int(state.forwards.sum()) == len(x)
