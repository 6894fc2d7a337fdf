import json

import numpy as np
import pytest
from PIL import Image

from lipforge.data import check_data, list_data
from tests.data.made import photo
from tests.schemas import result_of, results_of


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """Twelve JPEGs in two class folders, one of them with a name that looks like markup."""
    for number in range(12):
        place = tmp_path / "images" / ("[red]" if number % 3 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number, 60, 80)).save(place / f"{number}.JPEG")
    return tmp_path / "images"


SIZE = ("--resize", 48, "--crop", 32)


def test_the_list_names_every_set_and_kind_of_path(run, tmp_path):
    ended = run("data", "list")
    assert (ended.code, ended.err) == (0, "")
    for entry in list_data():
        assert f" {entry.name} " in ended.out
    assert str(tmp_path / "cache") in ended.out


def test_the_list_as_json_is_that_of_the_library(run, tmp_path):
    ended = run("data", "list", "--json")
    assert [entry["name"] for entry in results_of(ended.out)] == [entry.name for entry in list_data()]
    printed = json.loads(ended.out)
    assert printed["kind"] == "data list"
    assert printed["results"][0]["counts"] == {"train": 50000, "test": 10000}
    assert printed["cache"] == str(tmp_path / "cache")


def test_getting_a_set_says_what_is_there(run):
    ended = run("data", "get", "cifar10-sample")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("cifar10-sample: 500 train, 500 test images")
    assert result_of(run("data", "get", "cifar10-sample", "--json").out)["ready"] is True


def test_getting_an_unknown_set_suggests_the_nearest(run):
    ended = run("data", "get", "cifar-10")
    assert (ended.code, ended.out) == (2, "")
    assert "no data set 'cifar-10'; did you mean cifar10" in ended.err


def test_a_check_reports_counts_range_and_identity(run):
    ended = run("data", "check", "cifar10-sample:train")
    report = check_data("cifar10-sample:train")
    assert (ended.code, ended.err) == (0, "")
    assert "500 images of 3x32x32, values in [0, 1]" in ended.out
    assert report.digest in ended.out
    for name, count in zip(report.class_names, report.histogram, strict=True):
        assert any(f" {name} " in line and f" {count} " in line for line in ended.out.splitlines())


def test_a_check_as_json_is_the_librarys_report(run):
    printed = result_of(run("data", "check", "cifar10-sample:test", "--json").out)
    report = check_data("cifar10-sample:test")
    assert (printed["count"], printed["digest"]) == (500, report.digest)
    assert printed["histogram"] == list(report.histogram)
    assert printed["unreadable"] == []


def test_a_check_of_a_folder_prints_class_names_as_they_are(run, folder):
    ended = run("data", "check", f"folder:{folder}", *SIZE)
    assert ended.code == 0
    assert "12 images of 3x32x32" in ended.out
    assert " [red] " in ended.out


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_unreadable_images_are_all_named_and_end_with_2(run, folder, form):
    (folder / "dog" / "3.JPEG").write_bytes(b"not an image")
    (folder / "[red]" / "5.JPEG").write_bytes((folder / "[red]" / "5.JPEG").read_bytes()[:200])
    ended = run("data", "check", f"folder:{folder}", *SIZE, *form)
    assert ended.code == 2
    assert "dog/3.JPEG" in ended.out
    assert "[red]/5.JPEG" in ended.out
    if form:
        printed = result_of(ended.out)
        assert (printed["count"], len(printed["unreadable"])) == (10, 2)


def test_forging_stops_at_an_unreadable_image_and_names_it(run, folder, tmp_path, model_file):
    (folder / "dog" / "3.JPEG").write_bytes(b"not an image")
    ended = run("forge", f"{model_file}:build", "--data", f"folder:{folder}", *SIZE)
    assert (ended.code, ended.out) == (2, "")
    assert "error: unreadable image" in ended.err
    assert "dog/3.JPEG" in ended.err
    assert not (tmp_path / "recipe.json").exists()


@pytest.mark.filterwarnings("default")
def test_forging_skips_an_unreadable_image_only_if_asked_and_says_so(run, folder, model_file):
    (folder / "dog" / "3.JPEG").write_bytes(b"not an image")
    options = ("--data", f"folder:{folder}", *SIZE, "--on-error", "skip", "--workers", 0)
    ended = run("forge", f"{model_file}:build", *options, "--json")
    assert ended.code == 0
    assert result_of(ended.out)["images_seen"] == 11
    assert ended.err.startswith("note: left out 1 unreadable images of folder:")
    assert "dog/3.JPEG" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_missing_file_of_images_is_named_and_a_present_one_is_read(run, tmp_path):
    ended = run("forge", "resnet20", "--no-weights", "--data", "npz:none.npz")
    assert ended.code == 2
    assert "none.npz" in ended.err
    np.savez(tmp_path / "mine.npz", images=np.zeros((3, 3, 32, 32), np.uint8), labels=np.arange(3))
    assert run("data", "check", "npz:mine.npz").code == 0
