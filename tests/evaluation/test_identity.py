"""What tells two evaluations apart."""

import pytest
import torch
from torch import nn

from lipforge.batching import as_data
from lipforge.data import from_arrays, take
from lipforge.evaluation import task_name
from lipforge.runs.identity import data_identity, model_identity
from lipforge.types import Threat
from tests.evaluation.toys import linear
from tests.nets import images

THREAT = Threat("linf", "8/255")


def test_equal_models_are_identical_and_any_weight_or_setting_tells_them_apart():
    model = linear()
    assert model_identity(model) == model_identity(linear())
    changed = linear()
    with torch.no_grad():
        changed[1].bias[0] += 1e-6  # type: ignore[index]
    assert model_identity(changed)["tensors"] != model_identity(model)["tensors"]
    strict, loose = nn.LayerNorm(3), nn.LayerNorm(3, eps=0.1)
    assert model_identity(strict)["tensors"] == model_identity(loose)["tensors"]
    assert model_identity(strict)["printed"] != model_identity(loose)["printed"]


def test_a_buffer_that_is_not_saved_counts_too():
    first, second = nn.Flatten(), nn.Flatten()
    first.register_buffer("bound", torch.ones(1), persistent=False)
    second.register_buffer("bound", torch.zeros(1), persistent=False)
    assert model_identity(first) != model_identity(second)


def test_an_address_in_the_printed_form_does_not_count():
    class Holder(nn.Module):
        def extra_repr(self) -> str:
            return f"{object()}"

    assert model_identity(Holder()) == model_identity(Holder())


def test_data_is_told_apart_by_content_and_by_which_images_of_it():
    x, y = images(40, size=4), torch.arange(40) % 3
    data = from_arrays(x.numpy(), y.numpy(), layout="NCHW")
    other = from_arrays(x.numpy(), ((y + 1) % 3).numpy(), layout="NCHW")
    assert data_identity(data) == data_identity(from_arrays(x.numpy(), y.numpy(), layout="NCHW"))
    assert data_identity(data)["sample"] != data_identity(other)["sample"]
    assert data_identity(take(data, 9, seed=0)) != data_identity(take(data, 9, seed=1))
    changed = x.clone()
    changed[21, 0, 0, 0] = 1 - changed[21, 0, 0, 0]  # an image that the sample may miss; a pair is digested whole
    assert data_identity(as_data((x, y))) != data_identity(as_data((changed, y)))


@pytest.mark.parametrize(
    ("first", "second"),
    [("a/b", "a-b"), ("a b", "a/b"), ("x" * 90 + "1", "x" * 90 + "2"), ("é", "è")],
)
def test_different_labels_have_different_names(first, second):
    assert task_name(first, "pgd", THREAT, 0) != task_name(second, "pgd", THREAT, 0)


def test_the_seed_is_part_of_the_name():
    assert task_name("base", "pgd", THREAT, 3) == "base__pgd__linf-8over255__seed-3"
