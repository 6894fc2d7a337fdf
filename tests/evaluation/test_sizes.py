"""The batch size that is measured: which is chosen, and that a run keeps it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lipforge.errors import InputError, RunError
from lipforge.evaluation import estimate, evaluate, parse_batch_size, sizes
from lipforge.evaluation.sizes import fastest_size, images_per_second
from lipforge.ranks import alone
from lipforge.runs import RunDir
from lipforge.types import Classifier
from tests.evaluation.test_robust import ATTACK, MODEL, X, Y
from tests.evaluation.toys import THREAT, labelled

MANY = labelled(MODEL, 300)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], list[int]]:
    """Let each batch size have the speed that is given, and list the sizes that are measured."""

    def set_speeds(known: dict[int, float]) -> list[int]:
        asked: list[int] = []

        def speed(model: Classifier, x: Tensor, size: int) -> float:
            asked.append(size)
            return known[size]

        monkeypatch.setattr(sizes, "images_per_second", speed)
        return asked

    return set_speeds


@pytest.mark.parametrize(
    ("known", "most", "best"),
    [
        ({32: 100, 64: 180, 128: 188, 256: 999}, 1000, 64),  # 4 % more is not worth it
        ({32: 100, 64: 90}, 1000, 32),
        ({32: 100, 64: 200, 128: 400, 200: 500}, 200, 200),  # no more images
        ({32: 100, 64: 200, 128: 0}, 1000, 64),  # no more memory
        ({32: 0, 64: 0}, 1000, 32),
        ({20: 100}, 20, 20),
    ],
)
def test_the_size_grows_while_that_brings_five_percent_and_there_are_images_and_memory(speeds, known, most, best):
    asked = speeds(known)
    assert fastest_size(MODEL, X, most)[0] == best
    assert asked == [size for size in known if size != 256]


def test_a_speed_is_that_of_a_full_batch_also_where_there_are_fewer_images(monkeypatch):
    seen: list[tuple[int, bool]] = []

    def model(x: Tensor) -> Tensor:
        seen.append((len(x), x.requires_grad))
        return MODEL(x)

    monkeypatch.setattr(sizes, "SHORT", 0.0)
    assert images_per_second(model, X[:3], 50) > 0
    assert seen == [(50, True)] * 2  # one to warm up


def test_a_model_without_gradients_is_measured_by_its_forward_passes():
    assert images_per_second(lambda x: MODEL(x.detach()).detach(), X, 32) > 0


def test_a_batch_that_does_not_fit_into_memory_has_speed_0_and_other_errors_are_raised():
    def model(error: Exception) -> Callable[[Tensor], Tensor]:
        def classify(x: Tensor) -> Tensor:
            raise error

        return classify

    assert images_per_second(model(torch.OutOfMemoryError("CUDA out of memory")), X, 32) == 0
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        images_per_second(model(RuntimeError("mat1 and mat2")), X, 32)


def test_an_evaluation_has_the_measured_batch_and_shard_size_and_the_same_outcomes(tmp_path, speeds):
    speeds({32: 100, 64: 200, 75: 201})
    with RunDir.open(tmp_path) as run:
        found = evaluate(MODEL, MANY, ATTACK, THREAT, run=run, batch_size="auto")
    (config,) = tmp_path.glob("shards/*/config.json")
    content = json.loads(config.read_text())
    assert (content["config"]["batch_size"], content["size"]) == (64, 64)
    assert found.outcome == evaluate(MODEL, MANY, ATTACK, THREAT).outcome
    kept = json.loads((tmp_path / "batch_size.json").read_text())
    assert kept == {"batch_size": 64, "images_per_second": {"32": 100, "64": 200, "75": 201}}


def test_a_run_measures_once_and_resumes_with_that_number_however_fast_the_device_is_now(tmp_path, speeds):
    speeds({32: 100, 64: 200, 75: 201})
    with RunDir.open(tmp_path) as run:
        first = evaluate(MODEL, MANY, ATTACK, THREAT, run=run, batch_size="auto")
        assert speeds({}) == []  # asking for any speed is an error now
        assert evaluate(MODEL, MANY, ATTACK, THREAT, run=run, batch_size="auto") == first
        assert evaluate(MODEL, MANY, ATTACK, THREAT, run=run, batch_size=64) == first
        evaluate(MODEL, MANY, ATTACK, THREAT, run=run, batch_size="auto", label="another", seed=1)


def test_a_shard_limits_what_is_measured(speeds):
    asked = speeds({32: 100, 50: 200})
    evaluate(MODEL, MANY, ATTACK, THREAT, batch_size="auto", shard_size=50)
    assert asked == [32, 50]


def test_a_rank_measures_no_more_than_a_quarter_of_its_share_and_others_take_its_number(monkeypatch, speeds):
    asked = speeds({32: 100})

    class Four:
        count, is_first = 4, True

    monkeypatch.setattr(sizes, "own_rank", Four)
    with alone():
        evaluate(MODEL, MANY, ATTACK, THREAT, batch_size="auto")
    assert asked == [32]
    Four.is_first = False
    monkeypatch.setattr(sizes, "from_first", lambda size: 7)
    evaluate(MODEL, MANY, ATTACK, THREAT, batch_size="auto")
    assert asked == [32]


@pytest.mark.parametrize("content", ["{}", '{"batch_size": 0}', '{"batch_size": "auto"}', "[]"])
def test_a_damaged_number_is_an_error_that_says_what_to_do(tmp_path, content):
    with RunDir.open(tmp_path) as run:
        (tmp_path / "batch_size.json").write_text(content)
        with pytest.raises(RunError, match=r"batch_size\.json .* is damaged; delete it to measure again"):
            evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run, batch_size="auto")


def test_an_estimate_takes_auto_too(speeds):
    speeds({22: 100})
    assert "batches of 22" in estimate(MODEL, (X, Y), ATTACK, THREAT, batch_size="auto").assumptions[1]


@pytest.mark.parametrize("value", [0, -1, "many", "1.5", 2.5, True, "", None])
def test_anything_but_auto_and_whole_numbers_is_refused(value: Any):
    with pytest.raises(InputError, match=r"batch_size must be auto or a whole number of at least 1, got "):
        parse_batch_size(value)


def test_without_fakes_some_size_is_found():
    assert fastest_size(MODEL, X, 64)[0] in (32, 64)
