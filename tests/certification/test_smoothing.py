"""Randomized smoothing against the closed form of a half space, and what a claim must not depend on."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

from lipforge.certification import certify, certify_cost, radius_of
from lipforge.data import load_data
from lipforge.errors import InputError, ModelError
from lipforge.models import load_model
from lipforge.statistics import lower_bound
from tests.certification.halves import half_space

SIGMA = 0.25
LABELS = torch.ones(1000, dtype=torch.int64)


def claims(result):
    """The result without what depends on the clock."""
    return replace(result, seconds=0.0)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("distance", [0.1, 0.3])
def test_a_radius_above_the_true_one_is_claimed_no_more_often_than_alpha_allows(distance, alpha):
    """1,000 repeats, as equal images have independent noise. Binomial(1000, alpha) passes the limit one time in 1e4."""
    model = half_space()
    images = model.at_distance(distance, 1000)
    result = certify(model, (images, LABELS), sigma=SIGMA, n0=20, n=200, alpha=alpha, batch_size=10_000)
    wrong = sum(image.radius > distance or image.prediction == 0 for image in result.images)
    assert wrong <= stats.binom.ppf(1 - 1e-4, 1000, alpha)


@pytest.mark.parametrize("distance", [0.1, 0.3])
def test_most_claims_come_close_to_the_true_radius(distance):
    """The bound of 0.05 is nearly exhausted: a bound that is safe because it claims nothing would fail here."""
    model = half_space()
    images = model.at_distance(distance, 1000)
    result = certify(model, (images, LABELS), sigma=SIGMA, n0=20, n=200, alpha=0.05, batch_size=10_000)
    wrong = sum(image.radius > distance for image in result.images)
    assert wrong >= 10  # 1 to 5 % of 1,000; P(Binomial(1000, 0.02) < 10) = 0.005, and the noise is fixed
    hits = torch.tensor([image.hits for image in result.images if image.selected == 1]) / 200
    expected = stats.norm.cdf(distance / SIGMA)
    assert hits.mean().item() == pytest.approx(expected, abs=4 * 0.5 / (200 * len(hits)) ** 0.5)


def test_each_claim_follows_from_its_counts():
    model = half_space()
    images = torch.cat([model.at_distance(distance, 1) for distance in (-0.2, -0.01, 0.0, 0.02, 0.3)])
    result = certify(model, (images, LABELS[:5]), sigma=SIGMA, n0=10, n=500, alpha=0.001)
    assert result.abstained == sum(image.prediction is None for image in result.images) > 0
    for image in result.images:
        p_lower = lower_bound(image.hits, 500, 0.001)
        assert (image.p_lower, image.draws) == (p_lower, 500)
        assert (image.prediction is None) == (p_lower <= 0.5)
        assert image.radius == pytest.approx(max(0, SIGMA * stats.norm.ppf(p_lower)), abs=2e-6)
    assert result.images[0].prediction == 0
    assert not result.images[0].certified(0.0)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_nothing_depends_on_the_batch_size(batch_size):
    model, images = half_space(), half_space().at_distance(0.1, 5)
    settings: dict[str, Any] = {"sigma": SIGMA, "n0": 9, "n": 50, "alpha": 0.01}
    whole = certify(model, (images, LABELS[:5]), **settings, batch_size=295)
    assert claims(certify(model, (images, LABELS[:5]), **settings, batch_size=batch_size)) == claims(whole)


def test_an_image_has_the_same_claim_whichever_others_are_certified():
    model, images = half_space(), half_space().at_distance(0.1, 7)
    data = (images, LABELS[:7])
    whole = certify(model, data, n0=9, n=50, alpha=0.01)
    every_third = certify(model, data, n0=9, n=50, alpha=0.01, skip=3)
    first_two = certify(model, data, n0=9, n=50, alpha=0.01, skip=3, limit=2)
    assert [image.index for image in every_third.images] == [0, 3, 6]
    assert every_third.images == whole.images[::3]
    assert first_two.images == whole.images[:4:3]
    assert len({image.hits for image in whole.images}) > 1  # equal images, other noise


def test_another_seed_is_other_noise_and_another_model_is_not():
    seen = []

    def watch(x):
        seen.append(x)
        return x.flatten(1)[:, :2]

    data = (torch.full((1, 3, 4, 4), 0.5), LABELS[:1])
    certify(watch, data, n0=4, n=8, seed=0)
    certify(lambda x: -watch(x), data, n0=4, n=8, seed=0)
    certify(watch, data, n0=4, n=8, seed=1)
    first, again, other = (torch.cat(seen[at : at + 2]) for at in (0, 2, 4))
    assert torch.equal(first, again)
    assert (first != other).all()


def test_selection_and_estimation_see_independent_noise_of_deviation_sigma():
    seen = []

    def watch(x):
        seen.append(x - 0.5)
        return x.flatten(1)[:, :2]

    certify(watch, (torch.full((1, 3, 32, 32), 0.5), LABELS[:1]), sigma=SIGMA, n0=8, n=8)
    selection, estimation = (part.flatten().double().numpy() for part in seen)
    assert stats.kstest(selection / SIGMA, "norm").pvalue > 0.01
    assert stats.kstest(estimation / SIGMA, "norm").pvalue > 0.01
    assert stats.pearsonr(selection, estimation).pvalue > 0.01


def test_leaving_out_the_wrong_ones_saves_passes_but_changes_no_certified_accuracy():
    model = half_space()
    data = (torch.cat([model.at_distance(-0.3, 3), model.at_distance(0.2, 3)]), LABELS[:6])
    settings: dict[str, Any] = {"n0": 20, "n": 100, "alpha": 0.01}
    whole, saved = certify(model, data, **settings), certify(model, data, **settings, only_correct=True)
    assert saved.curve == whole.curve
    assert saved.images[3:] == whole.images[3:]
    assert [(image.prediction, image.draws) for image in saved.images[:3]] == [(None, 0)] * 3
    assert (whole.forwards, saved.forwards) == (6 * 120, 6 * 20 + 3 * 100)


def test_the_curve_counts_right_images_with_at_least_the_radius():
    model = half_space()
    data = (torch.cat([model.at_distance(distance, 2) for distance in (0.05, 0.2, 0.4)]), LABELS[:6])
    result = certify(model, data, n0=20, n=2000, alpha=0.001, radii=[0, 0.1, 0.3])
    assert [here.certified for here in result.curve] == [6, 4, 2]
    assert [here.accuracy for here in result.curve] == [1, 4 / 6, 2 / 6]
    low, high = stats.binomtest(4, 6).proportion_ci(0.95, "exact")
    assert result.curve[1].interval == pytest.approx((low, high), rel=1e-7)
    assert result.at(0.1) == result.curve[1]
    assert "l2 0.10  66.67 [22.28, 95.67] 4 of 6" in str(result)


def test_a_real_model_on_real_images_is_certified_with_its_own_label():
    model, data = load_model("cifar10-resnet"), load_data("cifar10-sample")
    result = certify(model, data, n0=10, n=40, alpha=0.05, skip=100, label="base", model_name="cifar10-resnet")
    assert [image.index for image in result.images] == [0, 100, 200, 300, 400]
    assert [image.label for image in result.images] == data.batch([0, 100, 200, 300, 400])[1].tolist()
    assert (result.label, result.model, result.data) == ("base", "cifar10-resnet", data.name)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"sigma": 0.0}, "sigma must be"),
        ({"n": 0}, "n must lie in"),
        ({"n0": 0}, "n0 must lie in"),
        ({"alpha": 1.5}, "alpha must lie in"),
        ({"skip": 0}, "skip and limit"),
        ({"limit": 0}, "skip and limit"),
        ({"radii": [-1.0]}, "radii must be"),
        ({"batch_size": 0}, "batch_size must be"),
    ],
)
def test_wrong_settings_are_refused(settings, match):
    with pytest.raises(InputError, match=match):
        certify(half_space(), (half_space().at_distance(0.1, 2), LABELS[:2]), **settings)


@pytest.mark.parametrize(
    "data", [torch.zeros(2, 3, 4, 4), (torch.zeros(0, 3, 4, 4), LABELS[:0]), (torch.zeros(2, 3, 4, 4), LABELS[:1])]
)
def test_images_without_labels_are_refused(data):
    with pytest.raises(InputError, match=r"data must|labels must"):
        certify(half_space(), data, n=10)


def test_a_label_beyond_the_models_classes_is_refused():
    with pytest.raises(InputError, match=r"labels must lie in \[0, 2\)"):
        certify(half_space(), (half_space().at_distance(0.1, 2), 2 * LABELS[:2]), n=10)


def test_normalised_images_are_refused():
    with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
        certify(half_space(), (half_space().at_distance(0.1, 2) - 1, LABELS[:2]), n=10)


def test_a_model_in_train_mode_or_with_nan_logits_is_refused():
    data = (torch.zeros(1, 3, 4, 4), LABELS[:1])
    with pytest.raises(ModelError, match="eval mode"):
        certify(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).train(), data, n=10)
    with pytest.raises(ModelError, match="NaN logits"):
        certify(lambda x: x.flatten(1)[:, :2].log(), data, n=10)


def test_the_radius_is_scipys_quantile_rounded_downwards():
    for probability in (0.5001, 0.6, 0.9, 0.99, 0.99993):
        exact = 0.25 * stats.norm.ppf(probability)
        assert exact - 2e-6 < radius_of(probability, 0.25) <= exact


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5])
def test_up_to_one_half_there_is_no_radius(probability):
    assert radius_of(probability, 0.25) == 0


def test_the_estimate_counts_every_pass_and_asks_for_two_batches_only():
    asked = []

    def model(x):
        asked.append(len(x))
        return half_space()(x)

    data = (torch.zeros(50, 3, 4, 4), torch.zeros(50, dtype=torch.int64))
    cost = certify_cost(model, data, n0=100, n=1000, skip=20, batch_size=64)
    assert (cost.count, cost.forwards, cost.probed_forwards) == (3, 3 * 1100, 128)
    assert asked == [64, 64]
    assert cost.seconds > 0
    assert cost.seconds == pytest.approx(3 * cost.seconds_per_image)
    assert str(cost).startswith("3 images, 3,300 forward passes, about ")
