import pytest

from lipforge.errors import DataError, InputError, WeightsError
from lipforge.models.robustbench import robustbench_entries
from lipforge.paper import load_settings
from lipforge.reproduction import Source
from tests.reproduction.made import source

SETTINGS = load_settings()


@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore")  # the packages warn about each other
def test_every_model_of_the_paper_is_an_entry_of_robustbench():
    assert {model.spec.removeprefix("robustbench:") for model in SETTINGS.models} <= set(robustbench_entries())


def test_imagenet_needs_the_users_folder(tmp_path):
    with pytest.raises(DataError, match=r"your own folder with train/ and val/; name it \(--imagenet\)"):
        Source().test("ImageNet")
    with pytest.raises(DataError, match="no folder"):
        Source(imagenet=str(tmp_path)).training("ImageNet", 5000)


def test_calibration_images_of_a_larger_count_begin_with_those_of_a_smaller():
    small, large = (source().training("CIFAR-10", count) for count in (5, 20))
    assert [label for _, label in (large[at] for at in range(5))] == [
        label for _, label in (small[at] for at in range(5))
    ]
    assert source().calibration_count("CIFAR-10", None) == 16
    assert Source().calibration_count("CIFAR-10", None) is None
    assert Source().calibration_count("ImageNet", 20_000) == 20_000
    assert Source(calibrate=100).calibration_count("CIFAR-10", None) == 100


def test_the_fewest_of_all_limits_holds():
    assert len(source(limit=6).test("CIFAR-10", 5)) == 5
    assert len(source(limit=6).test("CIFAR-10")) == 6


@pytest.mark.parametrize("limit", [2, 8])
def test_a_limit_holds_for_stand_ins_too(limit):
    assert len(Source(stand_in=True).test("ImageNet")) == SETTINGS.stand_in.count
    assert len(Source(stand_in=True, limit=limit).test("ImageNet")) == limit


def test_a_model_that_another_version_lacks_is_missing_like_its_weights():
    paper = source({"LTD": "no such model"}).settings.model("CIFAR-10", "LTD")
    with pytest.raises(WeightsError, match="brings the version that has it"):
        Source().model(paper)


def test_counts_are_at_least_one():
    with pytest.raises(InputError, match="limit must be at least 1, got 0"):
        Source(limit=0)
    with pytest.raises(InputError, match="calibrate must be at least 1, got 0"):
        Source(calibrate=0)
