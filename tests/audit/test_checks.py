"""Each check on measurements that are made up to pass and to fail."""

import pytest

from lipforge.audit import checks

YES, NO = True, False


def test_square_alone_must_break_nothing():
    assert checks.white_box([NO, YES], [YES, YES]).passed
    failed = checks.white_box([YES, YES], [YES, NO])
    assert failed.passed is False
    assert "square alone breaks 1" in failed.evidence


def test_pgd_must_leave_no_more_than_fgsm():
    assert checks.one_step([YES, YES], [YES, NO]).passed
    assert checks.one_step([YES, NO], [YES, NO]).passed
    assert checks.one_step([YES, NO], [YES, YES]).passed is False


@pytest.mark.parametrize(
    ("left", "passed"), [((5, 3, 0), True), ((5, 5, 0), True), ((5, 3, 1), False), ((3, 5, 0), False)]
)
def test_accuracy_must_fall_to_zero(left, passed):
    points = [[radius / 255, standing] for radius, standing in zip((8, 32, 96), left, strict=True)]
    check = checks.sweep(points, 5)
    assert check.passed is passed
    assert f"{left[1]} at 32/255" in check.evidence


def test_transfer_may_break_half_a_percent_alone():
    own = [YES] * 200 + [NO] * 200
    assert checks.transferred(own, [NO] * 2 + [YES] * 398).passed
    failed = checks.transferred(own, [NO] * 3 + [YES] * 397)
    assert failed.passed is False
    assert "the base's alone break 3" in failed.evidence


@pytest.mark.parametrize(("weight", "passed"), [(9, False), (10, True), (12, True)])
def test_the_weight_variant_must_be_no_worse_than_the_base(weight, passed):
    measured = {"weight": weight, "columns": 3, "base_pgd": 10, "candidate_pgd": 11}
    assert checks.weight_variant(measured, 20).passed is passed


def test_without_zeroed_columns_the_weight_variant_says_nothing():
    measured = {"weight": 10, "columns": 0, "base_pgd": 10, "candidate_pgd": 11}
    assert checks.weight_variant(measured, 20).passed is None
    assert checks.weight_variant({**measured, "weight": None}, 20).passed is None


def test_cw_must_leave_no_more_than_transfer():
    assert checks.carlini_wagner([YES, NO], [YES, YES]).passed
    assert checks.carlini_wagner([YES, YES], [YES, NO]).passed is False


def test_the_gradient_must_beat_random_directions_on_nine_images_of_ten():
    assert checks.along_the_gradient([YES] * 9 + [NO]).passed
    assert checks.along_the_gradient([YES] * 8 + [NO] * 2).passed is False


def test_one_zero_gradient_is_too_many():
    assert checks.zero_gradients([0, 30, 3000], 10).passed
    failed = checks.zero_gradients([1, 300, 3000], 10)
    assert failed.passed is False
    assert "1 of 10 images" in failed.evidence
    assert "10.00 % of entries" in failed.evidence


def test_every_flag_of_autoattack_is_shown_once():
    assert checks.autoattack_flags([], 1, 500).passed
    failed = checks.autoattack_flags(["random", "random"], 2, 500)
    assert failed.passed is False
    assert failed.evidence == "random; Square broke 2 of 500 images after the gradient attacks"


@pytest.mark.parametrize(
    ("counts", "passed"),
    [
        ({"decide": 3, "flips": 0, "broken": 0}, True),
        ({"decide": 3, "flips": 1, "broken": 0}, False),
        ({"decide": 3, "flips": 0, "broken": 1}, False),
        (None, None),
    ],
)
def test_rounding_must_not_decide(counts, passed):
    assert checks.precision(counts).passed is passed


MODELS = {"base": "b", "candidate": "c"}
TERMS = {"sigma": 0.25, "n0": 100, "n": 1000, "alpha": 0.001, "seed": 0, "only_correct": False, "data_digest": "d"}


def certificate(model, shares, **terms):
    curve = [{"radius": radius, "accuracy": share} for radius, share in zip((0.0, 0.25), shares, strict=True)]
    return {**TERMS, "model_digest": model, "curve": curve, **terms}


def test_certificates_are_compared_where_a_run_has_both():
    base = certificate("b", (0.6, 0.4))
    assert checks.smoothing([base, certificate("c", (0.6, 0.5))], MODELS).passed
    assert checks.smoothing([base, certificate("c", (0.7, 0.3))], MODELS).passed is False
    assert checks.smoothing([base], MODELS).passed is None


def test_certificates_of_another_model_or_on_other_terms_vouch_for_nothing():
    base = certificate("b", (0.6, 0.4))
    assert checks.smoothing([base, certificate("another ratio", (0.6, 0.5))], MODELS).passed is None
    for term in ({"sigma": 0.5}, {"alpha": 0.05}, {"data_digest": "e"}):
        assert checks.smoothing([base, certificate("c", (0.6, 0.5), **term)], MODELS).passed is None
    elsewhere = {**certificate("c", (0.6, 0.5)), "curve": [{"radius": 0.7, "accuracy": 0.9}]}
    assert checks.smoothing([base, elsewhere], MODELS).passed is None
    worse = [certificate(model, share, sigma=1.0) for model, share in (("b", (0.6, 0.4)), ("c", (0.5, 0.4)))]
    assert checks.smoothing([base, certificate("c", (0.6, 0.5)), *worse], MODELS).passed is False


def test_an_uneven_end_is_a_doubt_and_shards_weigh_alike():
    failed = checks.even_effort([(10, 539.0, 12, 2075.0)])
    assert failed.passed is False
    assert failed.evidence == "base 539, candidate 2075"
    assert checks.even_effort([(10, 1000.0, 10, 901.0)]).passed
    assert checks.even_effort([(10, 1000.0, 10, 899.0)]).passed is False
    assert checks.even_effort([(10, 30.0, 10, 12.0)]).passed
    # Even in each shard, though the plain means are 583 and 917.
    assert checks.even_effort([(50, 500.0, 10, 500.0), (10, 1000.0, 50, 1000.0)]).passed
    assert checks.even_effort([(0, 0.0, 5, 100.0)]).passed is None
