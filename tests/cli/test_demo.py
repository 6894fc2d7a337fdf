"""The demo, on the images that lipforge ships with."""

import html
import json
from dataclasses import replace

import pytest

import lipforge
from lipforge.cli import demo
from lipforge.cli.demo import Sizes
from lipforge.data import load_data
from lipforge.errors import DataError
from lipforge.forge import load_recipe
from tests.schemas import result_of

TINY = Sizes(calibration=300, validation=10, test=12, judged=8, analysed=4)


@pytest.fixture(autouse=True)
def _no_download(monkeypatch):
    def without_cifar10(spec, **options):
        if spec.startswith("cifar10:"):
            raise DataError("no CIFAR-10 here")
        return load_data(spec, **options)

    monkeypatch.setattr(lipforge, "load_data", without_cifar10)
    monkeypatch.setattr(demo, "SMALL", TINY)


@pytest.mark.slow
def test_the_demo_says_what_it_found_and_resumes_to_the_same(tmp_path, run):
    ended = run("demo", "--out", tmp_path / "demo", "--json")
    result = result_of(ended.out)
    assert ended.code == 0
    assert "CIFAR-10 is not available here" in ended.err
    assert (result["kind"], result["count"], result["calibrated_on"], result["sites"]) == ("demo", 12, 300, 16)
    assert result["forged"] - result["base"] == pytest.approx(result["difference"]["difference"])
    assert load_recipe(tmp_path / "demo" / "recipe.json").images_seen == 300
    kinds = {json.loads(path.read_text())["kind"] for path in (tmp_path / "demo" / "results").glob("*.json")}
    assert kinds == {"analysis", "audit", "comparison", "demo", "gallery", "robust"}
    kinds = {
        json.loads(path.read_text())["kind"] for path in (tmp_path / "demo" / "improved" / "results").glob("*.json")
    }
    assert kinds == {"audit", "improve"}
    assert result["judged"] == 8
    page = (tmp_path / "demo" / "report.html").read_text()
    assert result["sentence"][result["sentence"].index("points [") :] in html.unescape(page)
    again = run("demo", "--out", tmp_path / "demo")
    assert again.code == 0
    assert result["sentence"] in again.out
    assert result["reason"] in again.out
    assert result["improved_sentence"] in again.out
    assert str(tmp_path / "demo" / "report.html") in again.out


@pytest.mark.slow
def test_what_the_second_process_has_computed_the_first_does_not(tmp_path, run):
    def shards():
        return {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "demo").rglob("shards/*/*.json"))}

    sizes = replace(TINY, calibration=100, test=4, judged=4, validation=4)
    demo._help("cifar10-resnet", None, str(tmp_path / "demo"), sizes)
    before = shards()
    assert {path.parent.parent.parent.name for path in before} == {"demo", "improved"}
    found = demo._measure(lipforge.load_model("cifar10-resnet"), "cifar10-resnet", *demo._images(sizes, None)[:2],
                          tmp_path / "demo", sizes)  # fmt: skip
    assert shards() == before
    assert (found.improve_audit.count, found.audit.count, found.base.count) == (4, 4, 4)


def test_a_demo_in_the_directory_of_another_is_told_to_go_elsewhere(tmp_path, run):
    with lipforge.RunDir.open(tmp_path / "demo" / demo.IMPROVED) as other:
        other.task("candidate-base", {}, 1, 1)

    def refused(*args, **options):
        other.task("candidate-base", {"shard_size": 2}, 2, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_measure", refused)
        ended = run("demo", "--out", tmp_path / "demo")
    assert ended.code == 2
    assert "--out starts another demo" in ended.err


def test_a_demo_of_no_images_is_refused(tmp_path, run):
    ended = run("demo", "--out", tmp_path / "demo", "--count", "0")
    assert ended.code == 2
    assert "count must be at least 1, got 0" in ended.err
