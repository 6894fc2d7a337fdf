"""PGD against the closed form, against foolbox, and by its properties."""

import pytest
import torch

from lipforge.attacks import PGD
from lipforge.attacks.base import is_fooled
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import Counted, linear_oracle, small_images, small_net
from tests.attacks.peers import foolbox
from tests.attacks.test_norms import norm_of


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "margin"])
def test_pgd_reaches_the_optimum_on_a_linear_model(norm, loss):
    model, x, y = linear_oracle()
    eps = 0.02  # small enough that many points stay unfooled and so take every step
    # In l2 each step takes the direction's error down by a factor of about 1 + step / eps = 1.25.
    x_adv = PGD(steps=100, loss=loss)(model, x, y, threat=Threat(norm, eps))
    standing = ~is_fooled(model, x_adv, y)
    assert standing.sum() >= 8
    margin = 2 * model(x_adv).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(margin[standing], model.worst_margin(x, y, eps, norm)[standing])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_fools_a_linear_model_exactly_where_it_can_be_fooled(norm):
    model, x, y = linear_oracle(count=200)
    fooled = is_fooled(model, PGD()(model, x, y, threat=Threat(norm, 0.05)), y)
    assert 10 < fooled.sum() < 190
    assert torch.equal(fooled, model.worst_margin(x, y, 0.05, norm) < 0)


@pytest.mark.parametrize(("norm", "peer"), [("linf", foolbox.attacks.LinfPGD), ("l2", foolbox.attacks.L2PGD)])
def test_unfooled_images_take_the_same_path_as_in_foolbox(norm, peer):
    model = small_net()
    x, y = small_images(model, 48)
    threat = Threat(norm, 0.02 if norm == "linf" else 0.1)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    _, expected, success = peer(steps=10, rel_stepsize=0.25, random_start=False)(wrapped, x, y, epsilons=threat.eps)
    last = x.clone()

    def watched(points):
        last[torch.cdist(points.flatten(1), x.flatten(1), p=torch.inf).argmin(dim=1)] = points.detach()
        return model(points)

    found = PGD(steps=10, random=False)(watched, x, y, threat=threat)
    assert 5 < success.sum() < 43
    torch.testing.assert_close(last[~success], expected[~success], rtol=0, atol=1e-6)
    # foolbox goes on after success and may come back; we keep the first success.
    assert is_fooled(model, found, y)[success].all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_result_lies_in_the_ball_and_in_the_unit_range(norm):
    model = small_net()
    x, y = small_images(model)
    x_adv = PGD(steps=5, restarts=2)(model, x, y, threat=Threat(norm, 0.1))
    # float32: x + eps is rounded to the nearest number, which may lie half a unit in the last place outside.
    assert norm_of(x_adv - x, norm).max() <= 0.1 + 1e-6
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1


def test_more_eps_fools_at_least_as_many():
    model = small_net()
    x, y = small_images(model, 100)
    counts = [
        int(is_fooled(model, PGD(steps=20)(model, x, y, threat=Threat("linf", eps)), y).sum())
        for eps in (0.002, 0.005, 0.01, 0.02, 0.04)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize("setting", ["steps", "restarts"])
def test_more_work_fools_every_image_that_less_work_fooled(setting):
    model = small_net()
    x, y = small_images(model, 100)
    fooled = []
    for amount in (1, 4):
        attack = PGD(steps=amount) if setting == "steps" else PGD(steps=2, step=0.2, restarts=amount)
        fooled.append(is_fooled(model, attack(model, x, y, threat=Threat("linf", 0.015)), y))
    assert (fooled[1] | ~fooled[0]).all()
    assert fooled[1].sum() > fooled[0].sum()


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


def test_a_fooled_image_costs_nothing_more():
    def brittle(images):
        moved = (images != 0.5).flatten(1).any(dim=1, keepdim=True)
        return torch.where(moved, -1.0, 1.0) * torch.tensor([1.0, 0.0]) + 0 * images.flatten(1)[:, :1]

    x, counted = torch.full((6, 3, 4, 4), 0.5), Counted(brittle)
    PGD(steps=10, restarts=3).run(counted, x, torch.zeros(6, dtype=torch.int64), threat=Threat("linf", 0.01))
    assert counted.images == 3 * len(x)  # the clean image, the start, and the confirmation in another batch


def test_an_image_that_stands_costs_one_forward_per_step_and_one_to_check_the_last_beside_the_clean_one():
    model = small_net()
    x, y = small_images(model)
    counted = Counted(model)
    PGD(steps=10, restarts=3)(counted, x, y, threat=Threat("linf", 1e-6))
    assert counted.images == (1 + 3 * 11) * len(x)


def test_the_result_says_which_images_are_fooled():
    model = small_net()
    x, y = small_images(model, 48)
    result = PGD(steps=10).run(model, x, y, threat=Threat("linf", 0.02))
    assert 5 < result.fooled.sum() < 43
    assert torch.equal(result.fooled, is_fooled(model, result.images, y))
    assert [outcome == "pgd" for outcome in result.outcome] == result.fooled.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "at least 1"),
        ({"restarts": 0}, "at least 1"),
        ({"step": -1.0}, "above 0"),
        ({"loss": "hinge"}, "one of ce"),
        ({"random": False, "restarts": 2}, "would all be the same"),
    ],
    ids=lambda value: str(value),
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        PGD(**settings)
