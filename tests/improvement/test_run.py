import json
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import lipforge as lf
from lipforge.batching import as_data
from lipforge.data import from_arrays
from lipforge.errors import InputError, ModelError
from lipforge.forge import tta_of
from lipforge.improvement import ImproveResult, improve
from lipforge.results import record
from lipforge.runs import Experiment, RunDir
from tests.improvement.lopsided import THREAT, Lopsided, symmetric
from tests.nets import ResidualNet, images, seeded

IMAGES = symmetric(240)


def tried(**changes: Any) -> ImproveResult:
    settings: dict[str, Any] = {"calibrate": 110, "validate": 120, "max_cost": 2, "parts": ("tta",), "shard_size": 60}
    return improve(Lopsided(), IMAGES, THREAT, **{**settings, "show_progress": False, **changes})


def test_the_gain_is_that_of_the_closed_form():
    found = tried()
    validation = lf.split(as_data(IMAGES), 0, 120)[1]
    x, _ = validation.batch(range(120))
    base, mirrored = found.candidates
    assert base.robust == Lopsided().robust(x, mirrored=False)
    assert mirrored.robust == Lopsided().robust(x, mirrored=True)
    assert found.chosen == "mirror"
    assert mirrored.robust_change is not None
    assert mirrored.robust_change.lost == 0
    assert (base.cost, mirrored.cost) == (1, 2)


def test_the_model_is_the_changed_one_and_the_recipe_makes_it_again():
    found, fresh, (x, _) = tried(), Lopsided(), IMAGES
    assert str(tta_of(found.model)) == "mirror"
    assert found.recipe is not None
    found.recipe.apply_(fresh)
    assert torch.equal(fresh(x), found.model(x))
    assert torch.equal(lf.plain(fresh)(x), Lopsided()(x))


def test_the_given_model_is_left_as_it_was():
    model = Lopsided()
    improve(model, IMAGES, THREAT, calibrate=0, validate=40, parts=("tta",), max_cost=2, show_progress=False)
    assert tta_of(model) is None
    assert type(model) is Lopsided


def test_nothing_is_an_answer_and_the_model_is_then_plain():
    found = tried(tta=["diagonals"], max_cost=3)
    assert found.chosen == "nothing"
    assert found.recipe is None
    assert tta_of(found.model) is None


def test_a_run_resumes_with_the_same_answer(tmp_path, monkeypatch):
    found = tried(run=RunDir.open(tmp_path), name="lopsided")
    monkeypatch.setattr("lipforge.improvement.run.AttackedSide", None)  # nothing is attacked again
    again = tried(run=RunDir.open(tmp_path), name="lopsided")
    assert again.record == found.record
    values = json.loads((tmp_path / "results" / "improve__linf-4over255.json").read_text())
    assert values == json.loads(json.dumps(record(found.record)))


def test_every_part_is_tried_alone_and_what_helped_together():
    """A head that is refitted on adversarial images has no use for the antisymmetric weight, as the mirror has none."""
    found = tried(parts=("tta", "head", "forge"), ratio=0.01)
    labels = [score.label for score in found.candidates]
    assert labels == ["nothing", "head", "mirror", "head + mirror"]
    assert found.calibrated == 110
    assert found.candidates[1].preparation > 0
    assert found.candidates[1].robust_count > found.candidates[0].robust_count
    assert [note for note in found.notes if note.startswith("forge was not tried: no site was found")]


def test_parts_that_cannot_be_fitted_leave_nothing_to_try():
    with pytest.raises(InputError, match="there is nothing to try: forge was not tried: no site was found"):
        tried(parts=("forge",))


def test_forging_is_one_of_the_candidates():
    model = seeded(ResidualNet)
    x = images(120)
    found = improve(
        model, (x, model(x).argmax(dim=1)), THREAT, calibrate=60, validate=20, max_cost=1, parts=("forge",),
        show_progress=False,
    )  # fmt: skip
    assert [score.label for score in found.candidates] == ["nothing", "forge"]


def test_an_audit_finds_the_gain_real_on_other_images():
    """The audit's positive control: the gain of averaging over the mirror image is one of the function itself."""
    found, (x, y) = tried(), symmetric(150, seed=2)
    report = lf.audit(found.model, (x, y), THREAT, show_progress=False)
    assert report.verdict == "real", str(report)
    assert report.union.candidate_accuracy == sum(Lopsided().robust(x, mirrored=True)) / 150
    assert "mirror alone" in [row.attack for row in report.rows]


def test_an_audit_of_images_that_chose_claims_nothing(tmp_path):
    run = RunDir.open(tmp_path)
    found = tried(run=run)
    validation = lf.split(as_data(IMAGES), 0, 120)[1]
    report = lf.audit(found.model, validation, THREAT, run=run, show_progress=False)
    assert report.verdict == "undecided"
    assert "chosen on 120 of these images" in report.sentence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": ("tta", "heads")}, "parts must be of tta, head, affine, forge, got 'heads'"),
        ({"parts": ("tta",), "max_cost": 1}, "nothing to try"),
        ({"validate": 0}, "must be at least 1"),
        ({"validate": 320}, "too few for 320"),
        ({"min_clean": 68}, "min_clean must be a share"),
        ({"tta": ["shifts by 40"], "max_cost": 5}, "a shift must be smaller than the image"),
        ({"tta": ["mirror x shifts"]}, "takes 10 forward passes per image, above max_cost 2"),
        ({"tta": ["sideways"]}, "tta must be"),
        ({"tta": "mirror"}, r"must be a list of sets of transforms, such as \['mirror'\]"),
        ({"tta": []}, "tta must name at least one set of transforms"),
        ({"parts": ("tta", "forge"), "ratio": 5.0}, "ratio must be"),
        ({"parts": ("tta", "forge"), "ratio": 0.0}, "ratio must be above 0 to try forging"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        tried(**changes)


def test_a_changed_model_is_refused():
    model = Lopsided()
    lf.set_tta_(model, "mirror")
    with pytest.raises(InputError, match="as it was trained"):
        improve(model, IMAGES, THREAT, calibrate=0, validate=40, parts=("tta",))


def test_without_parts_to_fit_no_calibration_images_are_needed():
    found = improve(Lopsided(), symmetric(60), THREAT, validate=60, max_cost=2, parts=("tta",), show_progress=False)
    assert found.calibrated == 0


def test_a_head_without_images_of_every_class_is_not_tried():
    x, _ = IMAGES
    found = improve(
        Lopsided(), (x, torch.zeros(len(x), dtype=torch.int64)), THREAT, calibrate=110, validate=60, max_cost=2,
        parts=("tta", "head"), show_progress=False,
    )  # fmt: skip
    assert [score.label for score in found.candidates] == ["nothing", "mirror"]
    assert "head was not tried: data must have images of every class" in found.notes[0]


def test_an_image_in_both_parts_is_named():
    x, y = symmetric(40)
    twice = (torch.cat((x, x)), torch.cat((y, y)))
    with pytest.raises(InputError, match=r"validation image \d+ is calibration image \d+ once more") as caught:
        improve(Lopsided(), twice, THREAT, calibrate=40, validate=40, parts=("tta", "head"))
    one, other = map(int, re.findall(r"image (\d+)", str(caught.value)))
    assert abs(one - other) == 40, "their positions in the data, not in the shuffled parts"


def test_digits_are_not_mirrored_unless_asked_for():
    x, y = symmetric(60)
    digits = from_arrays(x.numpy(), y.numpy(), name="torchvision:MNIST")
    settings: dict[str, Any] = {"calibrate": 0, "validate": 30, "parts": ("tta",), "show_progress": False}
    found = improve(Lopsided(), digits, THREAT, max_cost=3, **settings)
    assert [score.label for score in found.candidates] == ["nothing", "diagonals"]
    assert any("mirror image was not tried" in note for note in found.notes)
    asked = improve(Lopsided(), digits, THREAT, max_cost=3, tta=["mirror"], **settings)
    assert [score.label for score in asked.candidates] == ["nothing", "mirror"]
    assert not asked.notes
    with pytest.raises(InputError, match=r"takes more than max_cost .*mirror image was not tried"):
        improve(Lopsided(), digits, THREAT, max_cost=2, **settings)


@pytest.mark.parametrize(
    ("name", "mirrored"),
    [
        ("textures", True),
        ("contexts", True),
        ("fashion-mnist", True),
        ("FashionMNIST", True),
        ("SynthText", False),
        ("EMNIST", False),
    ],
)
def test_names_say_where_a_mirror_image_may_be_of_another_class(name, mirrored):
    x, y = symmetric(20)
    found = improve(
        Lopsided(), from_arrays(x.numpy(), y.numpy(), name=name), THREAT, calibrate=0, validate=5, max_cost=3,
        parts=("tta",), show_progress=False,
    )  # fmt: skip
    assert ("mirror" in [score.label for score in found.candidates]) == mirrored


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("cifar10:test", True),
        ("cifar10:test/first 60", True),
        ("cifar10:test/2000 to 2019", True),
        ("npz:data/x_test.npz", True),
        ("folder:data/Test", True),
        ("folder:data/testset/", True),
        ("cifar10:train", False),
        ("npz:test/train.npz", False),
        ("npz:latest.npz", False),
    ],
)
def test_images_that_are_called_test_images_are_warned_of(name, warned):
    x, y = symmetric(20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        improve(
            Lopsided(), from_arrays(x.numpy(), y.numpy(), name=name), THREAT, calibrate=0, validate=10,
            parts=("tta",), max_cost=2, show_progress=False,
        )  # fmt: skip
    expected = f"going by its name, {name} holds test images. Images that fit and choose a change cannot judge it"
    assert [str(one.message).startswith(expected) for one in caught] == [True] * warned
    assert {one.filename for one in caught} <= {__file__}


def test_the_progress_bar_calls_the_base_so(monkeypatch):
    titles = []
    work = Experiment.work

    def watch(self, *args, title, **named):
        titles.append(title)
        return work(self, *args, title=title, **named)

    monkeypatch.setattr(Experiment, "work", watch)
    tried(validate=20)
    assert titles == ["base", "mirror"]


def views_by_candidate(folder):
    found = {}
    for path in folder.glob("shards/improve__*/config.json"):
        found[path.parent.name.split("__")[1]] = json.loads(path.read_text())["config"]["views"]
    return found


def test_base_and_candidates_without_masks_are_attacked_equally_often(tmp_path):
    tried(run=RunDir.open(tmp_path), validate=60)
    assert views_by_candidate(tmp_path) == {"nothing": ["own gradients"], "mirror": ["own gradients"]}


def test_candidates_with_masks_are_attacked_past_them_and_through_the_base(tmp_path):
    model, x = seeded(ResidualNet), images(24)
    improve(
        model, (x, model(x).argmax(dim=1)), THREAT, calibrate=16, validate=8, parts=("forge",), ratio=2**-3,
        run=RunDir.open(tmp_path), show_progress=False,
    )  # fmt: skip
    assert views_by_candidate(tmp_path) == {
        "nothing": ["own gradients"],
        "forge": ["BPDA identity", "transferred gradients"],
    }


class Noisy(Lopsided):
    """Averaging it over its mirror image halves its noise, which would look like a gain."""

    def forward(self, x):
        return super().forward(x + 0.02 * torch.randn_like(x))


def test_a_model_with_random_outputs_is_refused():
    with pytest.raises(ModelError, match="model has random outputs"):
        improve(Noisy(), IMAGES, THREAT, calibrate=0, validate=40, max_cost=2, parts=("tta",), show_progress=False)


class Rounded(Lopsided):
    """Its gradients are 0 everywhere, so that no attack along them finds anything."""

    def forward(self, x):
        return super().forward((64 * x).round() / 64)


def test_a_gain_behind_masked_gradients_is_marked_and_not_chosen():
    found = improve(
        Rounded(), IMAGES, THREAT, calibrate=0, validate=20, max_cost=2, parts=("tta",), show_progress=False
    )
    assert found.candidates[1].unreliable, "Square breaks the base, but not as much of the mean"
    assert found.chosen == "nothing"
    assert "no reliable candidate" in found.reason


def test_a_last_layer_that_computes_its_weight_is_left_out():
    model = Lopsided()
    nn.utils.parametrizations.weight_norm(model.head)
    model.requires_grad_(False).eval()
    found = improve(
        model, IMAGES, THREAT, calibrate=110, validate=20, max_cost=2, parts=("tta", "head"), show_progress=False
    )
    assert [score.label for score in found.candidates] == ["nothing", "mirror"]
    assert "computes its weight from others" in found.notes[0]


def test_data_that_knows_its_training_images_gives_these_and_says_so(tmp_path):
    found = improve(
        seeded(ResidualNet), lf.load_data("cifar10-sample"), THREAT, calibrate=0, validate=2, max_cost=2,
        parts=("tta",), show_progress=False,
    )  # fmt: skip
    assert found.data == "cifar10-sample:train/validation"
    assert found.notes == ("images were drawn from cifar10-sample:train, the training images of cifar10-sample",)


def test_a_limit_on_images_that_are_not_used_is_refused():
    with pytest.raises(InputError, match="a limit on the latter has no effect; give cifar10-sample:train as the data"):
        improve(seeded(ResidualNet), lf.load_data("cifar10-sample", limit=30), THREAT, validate=2, parts=("tta",))
