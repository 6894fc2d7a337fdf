"""The probe against its parts, and what counts as a collapse."""

import pytest
import torch

from lipforge.attacks import PGD
from lipforge.training.guard import has_collapsed, probe
from lipforge.types import Threat
from tests.training.toys import toy_images, toy_net

THREAT = Threat("linf", "8/255")


def test_the_probe_is_clean_accuracy_and_pgd_accuracy():
    model = toy_net()
    images, _ = toy_images(200)
    with torch.no_grad():
        labels = model.eval()(images).argmax(dim=1)
    labels[:50] = (labels[:50] + 1) % 4
    found = probe(model.train(), images, labels, threat=THREAT, seed=0)
    model.eval()
    x_adv = PGD(steps=10)(model, images, labels, threat=THREAT, seed=0)
    with torch.no_grad():
        standing = (model(x_adv).argmax(dim=1) == labels) & (model(images).argmax(dim=1) == labels)
    assert found.clean == 0.75
    assert 0.05 < found.pgd < 0.75
    assert found.pgd == pytest.approx(standing.float().mean().item())


def test_the_probe_leaves_the_model_in_train_mode():
    model = toy_net().train()
    probe(model, *toy_images(8), threat=THREAT, seed=0)
    assert model.training


@pytest.mark.parametrize(
    ("pgd", "best", "collapsed"),
    [(0.0, 0.35, True), (0.17, 0.35, True), (0.18, 0.35, False), (0.0, 0.05, False), (0.4, 0.35, False)],
)
def test_a_collapse_is_less_than_half_of_the_best_and_more_than_five_points(pgd, best, collapsed):
    assert has_collapsed(pgd, best) is collapsed
