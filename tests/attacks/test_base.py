"""What all attacks share: the checks, the gradient, the counts; and cascades of them."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from torch import nn

from lipforge.attacks import (
    APGD,
    CW,
    FAB,
    FGSM,
    FMN,
    PGD,
    Attack,
    Boundary,
    Cascade,
    RayS,
    Square,
    TargetedAPGD,
    norms,
    spelled,
)
from lipforge.attacks.queries import is_misclassified
from lipforge.errors import InputError, ModelError
from lipforge.types import Threat
from tests.attacks.oracles import Counted, small_images, small_net

THREAT = Threat("linf", "8/255")
ATTACKS = [
    FGSM(),
    PGD(steps=3),
    CW(steps=12, binary_search_steps=3, initial_const=10.0, lr=0.02),
    APGD(steps=3),
    TargetedAPGD(steps=3),
    FAB(steps=3),
    FAB(steps=3, targets=0, restarts=2),
    FMN(steps=8),
    FMN(steps=4, targets=2),
    Square(queries=10),
    RayS(queries=100),
    Boundary(steps=3),
    Cascade((Square(queries=3), PGD(steps=1))),
]
IN_BOTH_NORMS = [
    pytest.param(attack, norm, id=f"{spelled(attack)}-{norm}")
    for attack in ATTACKS
    for norm in ("linf", "l2")
    if not (attack.name == "rays" and norm == "l2")
]


@pytest.mark.parametrize("attack", ATTACKS, ids=spelled)
def test_parameters_get_no_gradient(attack):
    model = small_net()
    x, y = small_images(model)
    attack(model, x, y, threat=THREAT)
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize(("attack", "norm"), IN_BOTH_NORMS)
def test_the_result_lies_in_the_ball_and_says_truly_who_is_broken(attack, norm):
    model = small_net()
    x, y = small_images(model, 60)
    y[:5] = (y[:5] + 1) % 4
    threat = Threat(norm, 0.02 if norm == "linf" else 0.15)
    result = attack.run(model, x, y, threat=threat)
    assert norms.of(threat).inside(result.images, x, threat.eps).all()
    # Some are broken, some not, or the next line would say little.
    assert 5 < result.broken.sum() < 60
    assert torch.equal(result.broken, is_misclassified(model, result.images, y))
    assert [outcome == "robust" for outcome in result.outcome] == (~result.broken).tolist()


@pytest.mark.parametrize("attack", ATTACKS, ids=spelled)
def test_the_passes_reported_are_the_passes_made(attack):
    model = Counted(small_net())
    x, y = small_images(small_net(), 40)
    result = attack.run(model, x, y, threat=Threat("linf", 0.01))
    assert 0 < result.broken.sum() < 40
    assert int(result.forwards.sum()) == model.images
    if not (attack.name == "fab" and attack.targets == 0):  # whose hook runs once for the classes of one image
        assert int(result.backwards.sum()) == model.gradients
    assert sum(stage.forwards for stage in result.stages) == model.images


@pytest.mark.parametrize("attack", ATTACKS, ids=spelled)
def test_an_image_that_is_misclassified_as_given_is_called_so_and_costs_one_forward(attack):
    model = small_net()
    x, y = small_images(model)
    result = attack.run(model, x, (y + 1) % 4, threat=THREAT)
    assert result.outcome == ("misclassified",) * len(x)
    assert result.forwards.tolist() == [1] * len(x)
    assert result.backwards.tolist() == [0] * len(x)
    assert torch.equal(result.images, x)


@pytest.mark.parametrize("attack", ATTACKS, ids=spelled)
def test_the_same_seed_gives_the_same_bytes(attack):
    model = small_net()
    x, y = small_images(model)
    first, again = (attack(model, x, y, threat=Threat("linf", 0.01), seed=5) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize(("attack", "norm"), IN_BOTH_NORMS)
def test_the_result_does_not_depend_on_the_batch_or_its_order(attack, norm):
    model = small_net().double()
    x, y = small_images(small_net(), 24)
    x, threat = x.double(), Threat(norm, 0.01 if norm == "linf" else 0.06)
    together = attack(model, x, y, threat=threat)
    order = torch.arange(23, -1, -1)
    parts = [
        attack(model, x[chunk], y[chunk], threat=threat, sample_ids=chunk) for chunk in torch.split(order, [5, 19])
    ]
    # float64: sums over another batch size may round differently, far below what could flip a decision here.
    torch.testing.assert_close(torch.cat(parts), together[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("attack", ATTACKS, ids=spelled)
def test_more_eps_breaks_at_least_as_many(attack):
    model = small_net()
    x, y = small_images(model, 60)
    counts = [int(attack.run(model, x, y, threat=Threat("linf", eps)).broken.sum()) for eps in (0.001, 0.008, 0.06)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (TargetedAPGD(steps=1, targets=1), TargetedAPGD(steps=1, targets=3)),
        (FAB(steps=1, targets=1), FAB(steps=10)),
        (Square(queries=20), Square(queries=200)),
        (RayS(queries=80), RayS(queries=150)),
        (Boundary(steps=1), Boundary(steps=6)),
        (CW(steps=2), CW(steps=20)),
    ],
    ids=lambda attack: attack.name,
)
def test_more_work_breaks_every_image_that_less_work_broke(less, more):
    model = small_net()
    x, y = small_images(model, 100)
    few, many = (attack.run(model, x, y, threat=Threat("linf", 0.015)).broken for attack in (less, more))
    assert (many | ~few).all()
    assert 5 < few.sum() <= many.sum() < 100


def test_a_success_that_does_not_repeat_does_not_count():
    class Moody:
        """Wrong about every image the second time it is asked, and never again."""

        calls = 0

        def __call__(self, x):
            self.calls += 1
            right = torch.tensor([1.0, 0.0, 0.0, 0.0]) + 0 * x.flatten(1)[:, :4]
            return right.flip(1) if self.calls == 2 else right

    x, y = torch.full((3, 3, 4, 4), 0.5), torch.zeros(3, dtype=torch.int64)
    result = Square(queries=1).run(Moody(), x, y, threat=THREAT)
    assert not result.broken.any()
    assert result.outcome == ("robust",) * 3


def test_a_success_outside_the_ball_does_not_count():
    @dataclass(frozen=True)
    class Cheat(Attack):
        name: ClassVar[str] = "cheat"

        def attack(self, state):
            at = state.robust()
            far = 1 - state.x[at]
            state.record(far, at, state.logits(far, at))

    model = small_net()
    x, y = small_images(model)
    assert is_misclassified(model, 1 - x, y).any()
    result = Cheat().run(model, x, y, threat=THREAT)
    assert not result.broken.any()
    assert result.outcome == ("robust",) * len(x)


def test_a_model_without_gradients_is_refused_by_name():
    x, y = small_images(small_net())

    def rounded(images):
        return images.flatten(1)[:, :4].detach().round()

    with pytest.raises(ModelError, match="gives no gradient"):
        PGD()(rounded, x, y, threat=THREAT)


@pytest.mark.parametrize("attack", ATTACKS, ids=spelled)
def test_the_images_given_are_not_changed(attack):
    model = small_net()
    x, y = small_images(model)
    before = x.clone()
    attack(model, x, y, threat=THREAT)
    assert torch.equal(x, before)


@pytest.mark.parametrize("attack", ATTACKS, ids=spelled)
def test_channels_last_and_strided_images_give_the_same_result(attack):
    model = small_net()
    x, y = small_images(model)
    expected = attack(model, x, y, threat=THREAT)
    strided = x.repeat_interleave(2, dim=3)[:, :, :, ::2]
    assert not strided.is_contiguous()
    # The kernel for another layout adds in another order, so a gradient near 0 could in principle change its sign.
    torch.testing.assert_close(attack(model, strided, y, threat=THREAT), expected)
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(attack(model, last, y, threat=THREAT), expected)


@pytest.mark.parametrize("attack", ATTACKS, ids=spelled)
def test_no_images_give_no_images(attack):
    x = torch.zeros(0, 3, 6, 6)
    assert attack(small_net(), x, torch.zeros(0, dtype=torch.int64), threat=THREAT).shape == x.shape


IN_L1 = [FGSM(), PGD(steps=10), APGD(steps=10), TargetedAPGD(steps=10), FAB(steps=5), Square(queries=40)]


@pytest.mark.parametrize("attack", IN_L1, ids=spelled)
def test_an_l1_result_lies_in_the_ball_says_truly_who_is_broken_and_does_not_depend_on_the_batch(attack):
    model = small_net().double()
    x, y = small_images(small_net(), 60)
    x, threat = x.double(), Threat("l1", 0.5)
    result = attack.run(model, x, y, threat=threat)
    assert norms.of(threat).inside(result.images, x, threat.eps).all()
    assert 5 < result.broken.sum() < 60
    assert torch.equal(result.broken, is_misclassified(model, result.images, y))
    chunk = torch.tensor([31, 4, 17])
    part = attack.run(model, x[chunk], y[chunk], threat=threat, sample_ids=chunk)
    torch.testing.assert_close(part.images, result.images[chunk], rtol=0, atol=1e-10)


def test_a_model_in_train_mode_is_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(ModelError, match="eval mode"):
        PGD()(model.train(), x, y, threat=THREAT)


def test_images_outside_the_unit_range_are_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(InputError, match="must lie in"):
        PGD()(model, 2 * x, y, threat=THREAT)


def test_labels_the_model_does_not_have_are_refused():
    model = small_net(classes=4)
    x, y = small_images(model)
    with pytest.raises(InputError, match=r"labels must lie in \[0, 4\)"):
        PGD()(model, x, y + 4, threat=THREAT)


def test_labels_that_are_not_one_per_image_are_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(InputError, match="one per image"):
        FGSM()(model, x, y[:-1], threat=THREAT)


def test_sample_ids_that_are_not_one_per_image_are_refused():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(InputError, match="sample_ids must be one per image"):
        PGD()(model, x, y, threat=THREAT, sample_ids=torch.arange(3))


def test_sample_ids_may_be_a_range():
    model = small_net()
    x, y = small_images(model)
    one, other = (PGD()(model, x, y, threat=THREAT, sample_ids=ids) for ids in (range(len(x)), torch.arange(len(x))))
    assert torch.equal(one, other)


def test_nan_logits_are_reported_with_their_image():
    def broken(x):
        logits = x.flatten(1)[:, :4]
        return torch.where(torch.arange(len(x))[:, None] == 5, torch.nan, logits)

    x, y = small_images(small_net())
    with pytest.raises(ModelError, match="image 5"):
        FGSM()(broken, x, y, threat=THREAT)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_image_that_breaks_later_is_reported_by_its_own_id_and_not_by_its_place_in_the_batch(value):
    net = small_net()
    x, y = small_images(net, 20)
    y[:4] = (y[:4] + 1) % 4  # misclassified: they leave, and the places of the others shift

    def broken(images):
        moved = (images[:, 0, 0, 0] != x[9, 0, 0, 0]) & ((images[:, 0] - x[9, 0]).abs().amax(dim=(1, 2)) < 0.05)
        return torch.where(moved[:, None], value, net(images))

    with pytest.raises(ModelError, match="logits for image 109"):
        APGD(steps=3).run(broken, x, y, threat=THREAT, sample_ids=torch.arange(100, 120))


def test_outputs_that_are_not_logits_are_refused():
    x, y = small_images(small_net())
    with pytest.raises(ModelError, match="must return logits"):
        FGSM()(nn.Identity().eval(), x, y, threat=THREAT)


CASCADE_THREAT = Threat("linf", 0.012)
MEMBERS = (FGSM(step_size=0.3), Square(queries=60), PGD(steps=10))


def _run(attack):
    model = small_net()
    x, y = small_images(model, 100)
    y[:4] = (y[:4] + 1) % 4
    return attack.run(model, x, y, threat=CASCADE_THREAT)


@pytest.mark.parametrize("member", MEMBERS, ids=lambda attack: attack.name)
def test_a_cascade_breaks_every_image_that_a_member_breaks(member):
    alone, together = _run(member).broken, _run(Cascade(MEMBERS)).broken
    assert 5 < alone.sum() < 100
    assert (together | ~alone).all()


def test_the_stages_say_what_each_attack_left_and_took():
    result = _run(Cascade(MEMBERS))
    assert [stage.attack for stage in result.stages] == ["clean", *map(spelled, MEMBERS)]
    left = [stage.robust for stage in result.stages]
    assert left[0] == 96
    assert left == sorted(left, reverse=True)
    assert left[-1] == int((~result.broken).sum())
    assert sum(stage.forwards for stage in result.stages) == int(result.forwards.sum())
    assert sum(stage.backwards for stage in result.stages) == int(result.backwards.sum())
    broken = [result.outcome.count(stage.attack) for stage in result.stages[1:]]
    assert broken == [before - after for before, after in pairwise(left)]
    assert min(broken) > 0
    assert result.outcome[:4] == ("misclassified",) * 4


def test_an_image_that_is_broken_is_not_attacked_again():
    result = _run(Cascade(MEMBERS))
    by_fgsm = torch.tensor([outcome == "fgsm:step_size=0.3" for outcome in result.outcome])
    # clean, FGSM's gradient, the look at its step, and the confirmation
    assert result.forwards[by_fgsm].tolist() == [4] * int(by_fgsm.sum())
    assert result.forwards[:4].tolist() == [1] * 4


def test_a_cascade_of_cascades_is_one_list_of_stages():
    nested = _run(Cascade((Cascade(MEMBERS[:2]), MEMBERS[2])))
    flat = _run(Cascade(MEMBERS))
    assert [(stage.attack, stage.robust) for stage in nested.stages] == [
        (stage.attack, stage.robust) for stage in flat.stages
    ]
    assert nested.outcome == flat.outcome


def test_nothing_is_run_when_no_image_is_robust():
    model = small_net()
    x, y = small_images(model)
    result = Cascade(MEMBERS).run(model, x, (y + 1) % 4, threat=CASCADE_THREAT)
    assert [stage.attack for stage in result.stages] == ["clean"]
    assert result.forwards.tolist() == [1] * len(x)


def test_a_cascade_of_nothing_is_refused():
    with pytest.raises(InputError, match="at least one attack"):
        Cascade(())


def test_whoever_watches_is_told_each_attack_as_it_begins():
    model, told = small_net(), list[str]()
    x, y = small_images(model, 10)
    Cascade((PGD(steps=2), FGSM(step_size=0.3))).run(model, x, y, threat=Threat("linf", 1e-4), watch=told.append)
    assert told == ["cascade", "pgd:steps=2", "fgsm:step_size=0.3"]
