"""The demo, on the images that lipforge ships with."""

import html
import json

import pytest

import lipforge
from lipforge.cli import demo
from lipforge.cli.demo import Sizes
from lipforge.data import load_data
from lipforge.errors import DataError
from lipforge.forge import load_recipe
from lipforge.ranks import HELPER
from tests.schemas import result_of

TINY = Sizes(calibration=300, validation=4, test=6, judged=4, analysed=2)


@pytest.fixture(autouse=True)
def _no_download(monkeypatch):
    def without_cifar10(spec, **options):
        if spec.startswith("cifar10:"):
            raise DataError("no CIFAR-10 here")
        return load_data(spec, **options)

    monkeypatch.setattr(lipforge, "load_data", without_cifar10)
    monkeypatch.setattr(demo, "SMALL", TINY)


@pytest.mark.slow
def test_the_demo_says_what_it_found_and_resumes_to_the_same(tmp_path, run, monkeypatch):
    ended = run("demo", "--out", tmp_path / "demo", "--json")
    result = result_of(ended.out)
    assert ended.code == 0
    assert "CIFAR-10 is not available here" in ended.err
    assert (result["kind"], result["count"], result["calibrated_on"], result["sites"]) == ("demo", 6, 300, 16)
    assert result["forged"] - result["base"] == pytest.approx(result["difference"]["difference"])
    assert load_recipe(tmp_path / "demo" / "recipe.json").images_seen == 300
    kinds = {json.loads(path.read_text())["kind"] for path in (tmp_path / "demo" / "results").glob("*.json")}
    assert kinds == {"analysis", "audit", "comparison", "demo", "gallery", "robust"}
    kinds = {
        json.loads(path.read_text())["kind"] for path in (tmp_path / "demo" / "improved" / "results").glob("*.json")
    }
    assert kinds == {"audit", "improve"}
    assert result["judged"] == 4
    page = (tmp_path / "demo" / "report.html").read_text()
    assert result["sentence"][result["sentence"].index("points [") :] in html.unescape(page)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setenv(HELPER, "1")
        helped = run("demo", "--out", tmp_path / "demo")
    assert (helped.code, helped.out) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*") if path.is_file()} == written
    again = run("demo", "--out", tmp_path / "demo")
    assert again.code == 0
    assert result["sentence"] in again.out
    assert result["reason"] in again.out
    assert result["improved_sentence"] in again.out
    assert str(tmp_path / "demo" / "report.html") in again.out


def test_a_demo_of_no_images_is_refused(tmp_path, run):
    ended = run("demo", "--out", tmp_path / "demo", "--count", "0")
    assert ended.code == 2
    assert "count must be at least 1, got 0" in ended.err
