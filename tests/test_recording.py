"""One recorded forward pass: names, storages and outputs, and nothing left behind."""

import pytest
import torch
from torch import nn

from lipforge.recording import record, storage, tensors


def recorded(model, x, hooks=()):
    seen = []
    record(model, x, lambda name, read, output: seen.append((name, read, output)), hooks)
    return seen


def test_operators_come_in_order_with_what_they_read():
    class Net(nn.Module):
        def forward(self, x):
            y = x * 2
            y[0] += 1  # writes into a view of y
            return y + x

    x = torch.ones(2, 3)
    seen = recorded(Net(), x)
    names = [name for name, _, _ in seen]
    assert names[0] == "mul"
    assert names[-1] == "add"
    made = storage(seen[0][2])
    assert seen[0][1] == (storage(x),)
    assert seen[-1][1] == (made, storage(x))
    assert made in seen[names.index("add_")][1]


def test_no_storage_is_reused_during_a_pass():
    class Chain(nn.Module):
        def forward(self, x):
            for _ in range(20):
                x = x + 1
            return x

    made = [storage(output) for _, _, output in recorded(Chain(), torch.zeros(1000))]
    assert len(set(made)) == 20


def test_hooks_are_removed_even_after_an_error():
    layer, calls = nn.Linear(3, 2), []
    hook = layer.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(RuntimeError):
        recorded(layer, torch.ones(1, 5), [hook])
    layer(torch.ones(1, 3))
    assert len(calls) == 1


def test_a_tensor_without_storage_is_its_own_memory():
    sparse = torch.eye(3).to_sparse()
    assert storage(sparse) == storage(sparse)
    assert storage(sparse) != storage(torch.eye(3).to_sparse())


def test_tensors_are_found_in_nested_values():
    a, b, c = torch.zeros(1), torch.ones(1), torch.ones(2)
    assert [tensor.tolist() for tensor in tensors(([a, None], {"x": (b, 3)}, c))] == [[0.0], [1.0], [1.0, 1.0]]
