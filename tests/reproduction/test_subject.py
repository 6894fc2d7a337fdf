from dataclasses import replace

import pytest
import torch

from lipforge.data import take
from lipforge.errors import DataError, ModelError, RunError
from lipforge.forge import forge_
from lipforge.models import load_model
from lipforge.reproduction.plan import Setting
from lipforge.reproduction.subject import Subject, calibrated
from lipforge.runs import RunDir
from tests.reproduction.made import source

SWIN = ("ImageNet", "Liu2023 Swin-L")


def load(tmp_path, name=("CIFAR-10", "RST-AWP"), *, limit=6, specs=None) -> Subject:
    chosen = source(specs, limit=limit)
    return Subject.load(chosen.settings.model(*name), chosen, RunDir.open(tmp_path / "run"), None, False)


def test_bounds_at_several_sizes_from_one_pass_are_those_of_passes_of_their_own():
    images = source().training("CIFAR-10", 20)
    model = load_model("cifar10-resnet")
    found = calibrated(model, images, {5: 5, 12: 12, None: 20}, False)
    for size, count in ((5, 5), (12, 12), (None, 20)):
        alone = forge_(load_model("cifar10-resnet"), take(images, count), show_progress=False)
        assert found[size].bounds == pytest.approx(alone.bounds, rel=1e-5)  # batches of other sizes round differently
        assert found[size].images_seen == count
    assert found[5].bounds != found[12].bounds


def test_recipes_are_kept_in_the_run_and_read_back(tmp_path):
    first = load(tmp_path, SWIN)
    first.calibrate(Setting(2**-7, "5000 images"), [Setting(2**-7)])
    names = sorted(path.name for path in (tmp_path / "run/recipes").iterdir())
    assert names == ["ImageNet-Liu2023-Swin-L__16.json", "ImageNet-Liu2023-Swin-L__6.json"]
    again = load(tmp_path, SWIN)
    again.calibrate(Setting(2**-7), [Setting(2**-7, "5000 images")])
    assert again.recipes == first.recipes
    assert [again.recipes[size].data for size in (6, 16)] == [f"cifar10-sample:train/random {size}" for size in (6, 16)]


def test_a_recipe_of_other_weights_is_refused(tmp_path):
    load(tmp_path).calibrate(Setting(2**-7))
    with pytest.raises(RunError, match="was calibrated on other weights of CIFAR-10 RST-AWP"):
        load(tmp_path, specs={"RST-AWP": "cifar10-resnet-natural"}).calibrate(Setting(2**-7))


@pytest.mark.parametrize("change", [{"data": "other"}, {"images_seen": 15}], ids=str)
def test_a_recipe_of_other_images_is_refused(tmp_path, change):
    first = load(tmp_path)
    first.calibrate(Setting(2**-7))
    (path,) = (tmp_path / "run/recipes").iterdir()
    replace(first.recipes[16], **change).save(path)
    with pytest.raises(RunError, match=r"__16.json was calibrated on 1\d images of .*, these are 16 of cifar10-sample"):
        load(tmp_path).calibrate(Setting(2**-7))


def test_more_images_than_there_are_is_an_error_for_their_setting_alone(tmp_path):
    subject = load(tmp_path, SWIN)
    large = Setting(2**-7, "20000 images")
    with pytest.raises(DataError, match=r"calibration takes 20000 images, cifar10-sample:train has \d+; name a larger"):
        subject.calibrate(large)
    subject.calibrate(Setting(2**-7), [large])
    assert list(subject.recipes) == [16]


def test_zeros_are_counted_on_calibration_images_and_the_weights_come_back(tmp_path):
    subject = load(tmp_path, SWIN)
    setting = Setting(2**-6, "weight", 0.5)
    subject.calibrate(setting)
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    with subject.seen_as(setting) as (view, note):
        weights = view.state_dict()
        assert any(not torch.equal(weights[name], value) for name, value in before.items())
    assert int(note.split()[0]) > 0
    assert all(torch.equal(value, before[name]) for name, value in subject.model.state_dict().items())
    assert subject._zeros(setting).images_seen == 16  # the calibration images; there are 6 test images


def test_zeros_of_another_calibration_are_counted_again(tmp_path):
    setting = Setting(2**-6, "weight", 0.5)
    seen = []
    for count in (4, 8):
        subject = load(tmp_path, SWIN)
        subject = replace(subject, source=replace(subject.source, calibrate=count), recipes={})
        subject.calibrate(setting)
        with subject.seen_as(setting):
            seen.append(subject._zeros(setting).images_seen)
    assert seen == [4, 8]
    assert len(list((tmp_path / "run/folds").iterdir())) == 2


def test_a_checkpoint_of_another_accuracy_is_refused_before_any_attack(tmp_path):
    subject = load(tmp_path, limit=60)
    assert subject.check_base(force=False).count == 60
    wrong = replace(subject, paper=replace(subject.paper, model="none of the paper", clean=10.0))
    with pytest.raises(
        ModelError, match=r"none of the paper may be the wrong checkpoint: RobustBench has 10.00 % .* \(--force\)"
    ):
        wrong.check_base(force=False)
    wrong.check_base(force=True)
    replace(subject, paper=replace(subject.paper, clean=10.0)).check_base(force=False)  # the paper's own is 88.25
