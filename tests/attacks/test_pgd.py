"""FGSM, PGD and refining against the closed form, against foolbox, and by their properties."""

import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks import FGSM, PGD, Refine, margin, norms, refine
from lipforge.attacks.queries import is_misclassified
from lipforge.errors import InputError, ModelError
from lipforge.types import Threat
from tests.attacks.oracles import Counted, linear_oracle, small_images, small_net
from tests.attacks.peers import foolbox
from tests.attacks.test_norms import norm_of
from tests.nets import images, seeded


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "margin"])
def test_pgd_reaches_the_optimum_on_a_linear_model(norm, loss):
    model, x, y = linear_oracle()
    eps = 0.02  # small enough that many points stay robust and so take every step
    # In l2 each step takes the direction's error down by a factor of about 1 + step / eps = 1.25.
    x_adv = PGD(steps=100, loss=loss)(model, x, y, threat=Threat(norm, eps))
    robust = ~is_misclassified(model, x_adv, y)
    assert robust.sum() >= 8
    margin = 2 * model(x_adv).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(margin[robust], model.worst_margin(x, y, eps, norm)[robust])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_breaks_an_image_of_a_linear_model_exactly_where_it_can(norm):
    model, x, y = linear_oracle(count=200)
    broken = is_misclassified(model, PGD()(model, x, y, threat=Threat(norm, 0.05)), y)
    assert 10 < broken.sum() < 190
    assert torch.equal(broken, model.worst_margin(x, y, 0.05, norm) < 0)


@pytest.mark.parametrize(("norm", "peer"), [("linf", foolbox.attacks.LinfPGD), ("l2", foolbox.attacks.L2PGD)])
def test_robust_images_take_the_same_path_as_in_foolbox(norm, peer):
    model = small_net()
    x, y = small_images(model, 48)
    threat = Threat(norm, 0.02 if norm == "linf" else 0.1)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    _, expected, success = peer(steps=10, rel_stepsize=0.25, random_start=False)(wrapped, x, y, epsilons=threat.eps)
    last = x.clone()

    def watched(points):
        last[torch.cdist(points.flatten(1), x.flatten(1), p=torch.inf).argmin(dim=1)] = points.detach()
        return model(points)

    found = PGD(steps=10, random_start=False)(watched, x, y, threat=threat)
    assert 5 < success.sum() < 43
    torch.testing.assert_close(last[~success], expected[~success], rtol=0, atol=1e-6)
    # foolbox continues after success and may come back; we keep the first success.
    assert is_misclassified(model, found, y)[success].all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_result_lies_in_the_ball_and_in_the_unit_range(norm):
    model = small_net()
    x, y = small_images(model)
    x_adv = PGD(steps=5, restarts=2)(model, x, y, threat=Threat(norm, 0.1))
    # float32: x + eps is rounded to the nearest number, which may lie half a unit in the last place outside.
    assert norm_of(x_adv - x, norm).max() <= 0.1 + 1e-6
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1


def test_more_eps_breaks_at_least_as_many():
    model = small_net()
    x, y = small_images(model, 100)
    counts = [
        int(is_misclassified(model, PGD(steps=20)(model, x, y, threat=Threat("linf", eps)), y).sum())
        for eps in (0.002, 0.005, 0.01, 0.02, 0.04)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize("setting", ["steps", "restarts"])
def test_more_work_breaks_every_image_that_less_work_broke(setting):
    model = small_net()
    x, y = small_images(model, 100)
    broken = []
    for amount in (1, 4):
        attack = PGD(steps=amount) if setting == "steps" else PGD(steps=2, step_size=0.2, restarts=amount)
        broken.append(is_misclassified(model, attack(model, x, y, threat=Threat("linf", 0.015)), y))
    assert (broken[1] | ~broken[0]).all()
    assert broken[1].sum() > broken[0].sum()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_image():
    model = small_net()
    x, y = small_images(model)
    threat = Threat("linf", 0.02)
    first, again, other = (PGD(steps=3)(model, x, y, threat=threat, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_result_does_not_depend_on_the_batch_or_its_order():
    model = small_net().double()
    x, y = small_images(small_net(), 24)
    x = x.double()
    threat, attack = Threat("linf", 0.02), PGD(steps=5, restarts=2)
    together = attack(model, x, y, threat=threat)
    order = torch.arange(23, -1, -1)
    parts = [
        attack(model, x[chunk], y[chunk], threat=threat, sample_ids=chunk) for chunk in torch.split(order, [5, 19])
    ]
    # float64: sums over another batch size may round differently, far below what could flip a gradient's sign here.
    torch.testing.assert_close(torch.cat(parts), together[order], rtol=0, atol=1e-12)


def test_a_broken_image_costs_nothing_more():
    def brittle(images):
        moved = (images != 0.5).flatten(1).any(dim=1, keepdim=True)
        return torch.where(moved, -1.0, 1.0) * torch.tensor([1.0, 0.0]) + 0 * images.flatten(1)[:, :1]

    x, counted = torch.full((6, 3, 4, 4), 0.5), Counted(brittle)
    PGD(steps=10, restarts=3).run(counted, x, torch.zeros(6, dtype=torch.int64), threat=Threat("linf", 0.01))
    assert counted.images == 3 * len(x)  # the clean image, the start, and the confirmation in another batch


def test_a_robust_image_costs_one_forward_per_step_and_one_to_check_the_last_beside_the_clean_one():
    model = small_net()
    x, y = small_images(model)
    counted = Counted(model)
    PGD(steps=10, restarts=3)(counted, x, y, threat=Threat("linf", 1e-6))
    assert counted.images == (1 + 3 * 11) * len(x)


def test_the_result_says_which_images_are_broken():
    model = small_net()
    x, y = small_images(model, 48)
    result = PGD(steps=10).run(model, x, y, threat=Threat("linf", 0.02))
    assert 5 < result.broken.sum() < 43
    assert torch.equal(result.broken, is_misclassified(model, result.images, y))
    assert [outcome == "pgd" for outcome in result.outcome] == result.broken.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "at least 1"),
        ({"restarts": 0}, "at least 1"),
        ({"step_size": -1.0}, "above 0"),
        ({"loss": "hinge"}, "one of ce"),
        ({"random_start": False, "restarts": 2}, "would all be the same"),
    ],
    ids=lambda value: str(value),
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        PGD(**settings)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fgsm_is_optimal_on_a_linear_model(norm):
    model, x, y = linear_oracle()
    x_adv = FGSM()(model, x, y, threat=Threat(norm, 0.05))
    logits = model(x_adv)
    margin = 2 * logits.gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(margin, model.worst_margin(x, y, 0.05, norm))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("norm", "peer"), [("linf", foolbox.attacks.LinfFastGradientAttack), ("l2", foolbox.attacks.L2FastGradientAttack)]
)
def test_fgsm_finds_the_images_that_foolbox_finds(norm, peer):
    model = small_net()
    x, y = small_images(model)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    _, expected, _ = peer(random_start=False)(wrapped, x, y, epsilons=0.1)
    torch.testing.assert_close(FGSM()(model, x, y, threat=Threat(norm, 0.1)), expected, rtol=0, atol=1e-6)


def test_a_random_start_depends_on_the_seed_and_the_id_only():
    model = small_net()
    x, y = small_images(model)
    attack, threat = FGSM(step_size=0.1, random_start=True), Threat("linf", 0.1)
    together = attack(model, x, y, threat=threat, seed=1)
    alone = attack(model, x[5:6], y[5:6], threat=threat, seed=1, sample_ids=torch.tensor([5]))
    torch.testing.assert_close(alone, together[5:6])
    assert not torch.equal(attack(model, x, y, threat=threat, seed=2), together)


def test_a_step_of_zero_is_refused():
    with pytest.raises(InputError, match="step_size must be above 0"):
        FGSM(step_size=0)


REFINED = Threat("linf", "16/255")


def _labelled(model, count=24):
    x = images(count, size=4)
    return x, model(x).argmax(dim=1)


def _curved():
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 3)))


def _linear():
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 3)))


def _start(x):
    return x + 0.5 * REFINED.eps * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))


def test_refining_lowers_the_margin_and_stays_inside_the_threat():
    model = _curved()
    x, y = _labelled(model, count=30)
    start = _start(x)
    refined = refine(model, start, x, y, torch.arange(30), REFINED, 10)
    assert (margin(model(refined.points), y) < margin(model(start), y)).all()
    torch.testing.assert_close(margin(model(refined.points), y), refined.margin)
    assert (refined.points - x).abs().max() <= REFINED.eps + 1e-6
    assert torch.equal(refine(model, start, x, y, torch.arange(30), REFINED, 0).points, start)


def test_refining_that_overshoots_keeps_the_best_point_on_its_way():
    """A bump as narrow as one step: the first step climbs it, the next ones come down on the far side."""

    def bump(x: Tensor) -> Tensor:
        height = -((x.flatten(1).mean(dim=1) - 0.5).abs())
        return torch.stack([torch.zeros_like(height), height], dim=1)

    x, y = torch.full((1, 3, 4, 4), 0.48), torch.zeros(1, dtype=torch.long)
    refined = refine(bump, x, x, y, torch.arange(1), Threat("linf", 0.3), steps=2)
    torch.testing.assert_close(refined.points, torch.full_like(x, 0.51))
    assert (refined.forwards, refined.backwards) == (3, 2)
    torch.testing.assert_close(refined.margin, torch.tensor([0.01]))


def test_the_last_step_of_refining_counts():
    model = _linear()
    x, y = _labelled(model)
    refined = refine(model, x, x, y, torch.arange(len(x)), REFINED, steps=10).points
    torch.testing.assert_close(norm_of(refined - x, "linf"), torch.full((len(x),), REFINED.eps))


@pytest.mark.parametrize("threat", [Threat("linf", 0.2), Threat("l2", 1.0)], ids=str)
def test_refined_points_stay_inside_the_ball_and_the_box(threat):
    x, y = images(20, size=4).round(), torch.zeros(20, dtype=torch.long)
    refined = refine(_linear(), x, x, y, torch.arange(20), threat, steps=30).points
    geometry = norms.of(threat)
    assert geometry.inside(refined, x, threat.eps).all()
    assert geometry.distance(refined - x).median() > 0.9 * threat.eps


def test_where_there_is_no_gradient_refining_says_so():
    """The first class's logit jumps: its gradient is 0 everywhere."""

    def steps(x: Tensor) -> Tensor:
        bright = (x.flatten(1).mean(dim=1) > 0.5) + 0 * x.flatten(1).sum(dim=1)
        return torch.stack([bright, torch.zeros_like(bright)], dim=1)

    x, y = images(6, size=4), torch.zeros(6, dtype=torch.long)
    for model in (steps, lambda x: steps(x.detach())):
        refined = refine(model, x, x, y, torch.arange(6), REFINED)
        assert refined.stuck.all()
        assert torch.equal(refined.points, x)


def test_nan_logits_while_refining_name_the_image():
    x, y = images(2, size=4), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ModelError, match="image 17"):
        refine(lambda x: x.flatten(1)[:, :2] * torch.nan, x, x, y, torch.tensor([17, 18]), REFINED)


def test_the_attack_from_given_points_tries_them_first_and_then_does_what_refining_does():
    model = _curved()
    x, y = _labelled(model, count=30)
    start, threat = _start(x).clamp(0, 1), REFINED
    judged = Refine(start, steps=0).run(model, x, y, threat=threat)
    assert judged.forwards.max() <= 3  # the clean image, the point, and the confirmation
    assert judged.backwards.sum() == 0
    assert torch.equal(judged.broken, is_misclassified(model, start, y))
    result = Refine(start, steps=10).run(model, x, y, threat=threat)
    refined = refine(model, start, x, y, torch.arange(30), threat, steps=10)
    assert 10 < (~result.broken).sum() < 30
    torch.testing.assert_close(result.images[~result.broken], refined.points[~result.broken])
    torch.testing.assert_close(result.margin[~result.broken], refined.margin[~result.broken])
    assert torch.equal(result.broken, refined.margin <= 0)
