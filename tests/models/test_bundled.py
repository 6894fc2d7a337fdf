"""The models that come with lipforge: small, licensed, and as accurate as their cards say."""

import pytest
import torch
from scipy import stats

from lipforge.attacks import PGD, parse_attack
from lipforge.attacks.queries import is_misclassified
from lipforge.data import load_data
from lipforge.models.architectures import BUNDLED, bundled_names, load_bundled, read_card
from lipforge.types import Threat

IMAGES = 500
ATTACKED = 200


@pytest.mark.parametrize("name", bundled_names())
def test_the_weights_are_small_and_the_card_is_complete(name):
    about = read_card(name).about
    assert (BUNDLED / f"{name}.safetensors").stat().st_size <= 5_000_000
    assert about["licence"] == "Apache-2.0"
    assert about["training"]["command"]
    assert about["training"]["stages"][0]["seed"] == 0
    assert about["training"]["seconds"] > 0
    epochs = [entry["stage"] for entry in about["training"]["curve"] if entry["event"] == "epoch"]
    assert sorted(set(epochs)) == list(range(1, len(about["training"]["stages"]) + 1))
    assert epochs.count(len(about["training"]["stages"])) == about["training"]["stages"][-1]["epochs"]
    assert about["accuracy"]["clean"]["count"] == about["accuracy"]["pgd20"]["count"] == 10_000


@pytest.mark.parametrize("name", bundled_names())
def test_the_cards_accuracies_agree_with_the_sample_of_test_images(name):
    accuracy = read_card(name).about["accuracy"]
    model = load_bundled(name).eval()
    x, y = load_data("cifar10-sample:test").batch(range(IMAGES))
    right = ~is_misclassified(model, x, y)
    # The sample was drawn without looking at any model, so the count is binomial around the card's share.
    assert stats.binomtest(int(right.sum()), IMAGES, accuracy["clean"]["share"]).pvalue > 0.001
    attack = parse_attack(accuracy["pgd20"]["attack"])
    assert attack == PGD(steps=20)
    chosen = torch.arange(ATTACKED)[right[:ATTACKED]]
    x_adv = attack(model, x[chosen], y[chosen], threat=Threat("linf", "8/255"), seed=0, sample_ids=chosen)
    standing = int((~is_misclassified(model, x_adv, y[chosen])).sum())
    assert stats.binomtest(standing, ATTACKED, accuracy["pgd20"]["share"]).pvalue > 0.001
