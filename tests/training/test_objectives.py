"""Each method's images and loss against a computation of a few lines that shares no code with it; crops and flips."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lipforge import rng
from lipforge.training import TrainConfig
from lipforge.training.objectives import augment, craft, divergence, eval_mode, objective
from lipforge.types import Threat
from tests.training.toys import toy_images, toy_net

EPS = 0.05
THREAT = Threat("linf", EPS)
IDS = torch.arange(100, 132)
ALL = torch.arange(64)
IMAGES = rng.uniform(0, ALL, stream="images", shape=(3, 6, 5))


def _task():
    model = toy_net().double().train()
    x, y = toy_images(32)
    model(x.double())  # running statistics that differ from both the batch's and the initial ones
    return model, x.double(), y


def _clip(x_adv, x):
    return torch.max(torch.min(x_adv, x + EPS), x - EPS).clamp(0, 1)


def test_pgd_at_trains_on_projected_sign_steps_from_a_random_start():
    model, x, y = _task()
    config = TrainConfig(method="pgd-at", steps=3, step_size=0.5, seed=4)
    x_adv = craft(model, x, y, IDS, config=config, threat=THREAT, step_size=0.5, epoch=2)
    model.eval()
    noise = rng.uniform(4, IDS, stream="train-start", shape=(3, 8, 8), low=-1, high=1, counter=2, dtype=x.dtype)
    expected = _clip(x + EPS * noise, x)
    for _ in range(3):
        leaf = expected.clone().requires_grad_()
        F.nll_loss(model(leaf).softmax(dim=1).log(), y).backward()
        expected = _clip(expected + 0.5 * EPS * leaf.grad.sign(), x)
    torch.testing.assert_close(x_adv, expected)
    model.train()
    loss, logits = objective(model, x, x_adv, y, config=config)
    probability = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
    torch.testing.assert_close(loss, -probability[torch.arange(32), y].log().mean())


def test_fgsm_rs_is_pgd_at_with_one_large_step():
    model, x, y = _task()
    now: dict[str, Any] = {"threat": THREAT, "step_size": 1.25, "epoch": 0}
    fast = craft(model, x, y, IDS, config=TrainConfig(method="fgsm-rs"), **now)
    slow = craft(model, x, y, IDS, config=TrainConfig(method="pgd-at", steps=1, step_size=1.25), **now)
    assert torch.equal(fast, slow)
    assert (fast - x).abs().max() <= EPS + 1e-12


def test_trades_attacks_the_divergence_from_its_own_clean_answer():
    model, x, y = _task()
    config = TrainConfig(method="trades", steps=2, step_size=0.5, seed=4)
    x_adv = craft(model, x, y, IDS, config=config, threat=THREAT, step_size=0.5, epoch=1)
    model.eval()
    noise = rng.normal(4, IDS, stream="trades-start", shape=(3, 8, 8), counter=1).double()
    expected, clean = _clip(x + 0.001 * noise, x), model(x).detach().softmax(dim=1)
    for _ in range(2):
        leaf = expected.clone().requires_grad_()
        (clean * (clean.log() - model(leaf).softmax(dim=1).log())).sum().backward()
        expected = _clip(expected + 0.5 * EPS * leaf.grad.sign(), x)
    torch.testing.assert_close(x_adv, expected)


def test_the_trades_loss_is_the_clean_loss_plus_beta_times_the_divergence():
    model, x, y = _task()
    x_adv = (x + 0.03).clamp(0, 1)
    loss, _ = objective(model, x, x_adv, y, config=TrainConfig(method="trades", beta=2.5))
    clean, other = model(x).softmax(dim=1), model(x_adv).softmax(dim=1)
    expected = -clean[torch.arange(32), y].log().mean() + 2.5 * (clean * (clean / other).log()).sum(dim=1).mean()
    torch.testing.assert_close(loss, expected)


def test_label_smoothing_mixes_the_label_with_the_uniform_distribution():
    model, x, y = _task()
    loss, logits = objective(model, x, x, y, config=TrainConfig(method="standard", label_smoothing=0.2))
    target = 0.8 * F.one_hot(y, 4) + 0.2 / 4
    torch.testing.assert_close(loss, -(target * logits.log_softmax(dim=1)).sum(dim=1).mean())


def test_the_divergence_of_a_distribution_from_itself_is_zero():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    assert divergence(logits, logits + 5.0).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("method", ["standard", "fgsm-rs", "pgd-at", "trades"])
def test_crafting_leaves_the_model_as_it_was(method):
    model, x, y = _task()
    model[1].eval()
    before = [tensor.clone() for tensor in model.state_dict().values()]
    craft(model, x, y, IDS, config=TrainConfig(method=method, steps=2), threat=THREAT, step_size=0.5, epoch=0)
    assert all(torch.equal(old, new) for old, new in zip(before, model.state_dict().values(), strict=True))
    assert all(weight.grad is None for weight in model.parameters())
    assert [part.training for part in model] == [True, False, True, True, True, True, True]


def test_images_stay_clean_in_standard_training_and_while_eps_is_zero():
    model, x, y = _task()
    assert craft(model, x, y, IDS, config=TrainConfig(method="standard"), threat=THREAT, step_size=1.0, epoch=0) is x
    assert craft(model, x, y, IDS, config=TrainConfig(method="trades"), threat=None, step_size=1.0, epoch=0) is x


def test_each_part_gets_its_own_mode_back_even_after_an_error():
    model = toy_net().train()
    model[3].eval()
    with eval_mode(model):
        assert not any(part.training for part in model.modules())
    with pytest.raises(ZeroDivisionError), eval_mode(model):
        _ = 1 // 0
    assert [part.training for part in model] == [True, True, True, False, True, True, True]


def test_every_image_is_a_window_of_the_padded_image_and_every_window_occurs():
    moved = augment(IMAGES, ALL, seed=0, epoch=0, crop=1, flip=False)
    padded = F.pad(IMAGES, (1, 1, 1, 1))
    found = []
    for image, whole in zip(moved, padded, strict=True):
        windows = [
            (row, column)
            for row in range(3)
            for column in range(3)
            if torch.equal(image, whole[:, row : row + 6, column : column + 5])
        ]
        assert len(windows) == 1
        found += windows
    assert len(set(found)) == 9


def test_about_half_of_the_images_are_mirrored_and_the_rest_untouched():
    flipped = augment(IMAGES, ALL, seed=0, epoch=0, crop=0, flip=True)
    mirrored = (flipped == IMAGES.flip(3)).flatten(1).all(dim=1)
    untouched = (flipped == IMAGES).flatten(1).all(dim=1)
    assert torch.equal(mirrored, ~untouched)
    # 64 fair coins: outside 20 .. 44 with probability 0.0015.
    assert 20 <= int(mirrored.sum()) <= 44


def test_augmentation_depends_on_the_image_and_the_epoch_and_not_on_the_batch():
    whole = augment(IMAGES, ALL, seed=0, epoch=3, crop=2, flip=True)
    part = augment(IMAGES[10:20], ALL[10:20], seed=0, epoch=3, crop=2, flip=True)
    assert torch.equal(whole[10:20], part)
    assert not torch.equal(whole, augment(IMAGES, ALL, seed=0, epoch=4, crop=2, flip=True))


def test_augmentation_does_nothing_unless_asked():
    assert torch.equal(augment(IMAGES, ALL, seed=0, epoch=0, crop=0, flip=False), IMAGES)
