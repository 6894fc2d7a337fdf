"""The data flow of one forward pass, recorded from outside: which layer feeds which, and where paths meet again.

No code of the model is read or changed. A dispatch mode sees every operator, so functional and in-place
activations, `+=`, slices and paddings are all part of the graph; conv, linear and attention layers are single nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Hardswish, nn.Mish)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (*CONVS, nn.Linear, nn.MultiheadAttention)
PRODUCTS = {"mm", "bmm", "matmul", "baddbmm", "_native_multi_head_attention"}


@dataclass(frozen=True)
class Node:
    """One operator or layer call: what fed it, and for a layer its name and the shape of its input."""

    op: str
    inputs: tuple[int, ...]
    layer: str | None = None
    input_shape: tuple[int, ...] = ()


class Graph:
    """Nodes in the order they ran; node 0 is the image. Sets of nodes are bit masks."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.ancestors: list[int] = []

    def add(self, node: Node) -> int:
        above = 1 << len(self.nodes)
        for parent in node.inputs:
            above |= self.ancestors[parent]
        self.nodes.append(node)
        self.ancestors.append(above)
        return len(self.nodes) - 1

    def members(self, bits: int) -> Iterator[int]:
        """The nodes in a bit mask, in the order they ran."""
        while bits:
            lowest = bits & -bits
            yield lowest.bit_length() - 1
            bits ^= lowest

    def layers(self, bits: int) -> list[int]:
        """The conv, linear and attention calls in a bit mask."""
        return [index for index in self.members(bits) if self.nodes[index].op == "layer"]

    def is_product(self, index: int) -> bool:
        """Whether the node multiplies two activations as matrices: the mark of attention."""
        node = self.nodes[index]
        return node.op.startswith("_scaled_dot_product") or (node.op in PRODUCTS and len(node.inputs) > 1)


def trace(model: nn.Module, image: Tensor) -> Graph:
    """Run `model` once on `image` (1, C, H, W), without gradients, and return the graph of what happened."""
    recorder = _Recorder(image)
    names = {module: name for name, module in model.named_modules() if isinstance(module, LAYERS + ACTIVATIONS)}
    handles = []
    for module, name in names.items():
        handles.append(module.register_forward_pre_hook(recorder.enter, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(recorder.leave(name), with_kwargs=True))
    try:
        with torch.no_grad(), recorder:
            model(image)
    finally:
        for handle in handles:
            handle.remove()
    return recorder.graph


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    def __init__(self, image: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.graph = Graph()
        self._depth = 0
        self._entered: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._node_of: dict[int, int] = {}
        self._alive: list[Tensor] = []  # a freed storage could be reused under the same address
        self._produced([image], self.graph.add(Node("image", ())))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = self._inputs((args, kwargs)) if self._depth == 0 else ()
        output = func(*args, **(kwargs or {}))
        if self._depth == 0 and inputs:
            op = func.overloadpacket.__name__
            self._produced(output, self.graph.add(Node(op.rstrip("_") if not op.startswith("_") else op, inputs)))
        return output

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        first = next(_tensors((args, kwargs)), None)
        self._entered.append((self._inputs((args, kwargs)), tuple(first.shape) if first is not None else ()))
        self._depth += 1

    def leave(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._depth -= 1
            inputs, shape = self._entered.pop()
            if self._depth == 0 and inputs:
                op = "layer" if isinstance(module, LAYERS) else "activation"
                self._produced(output, self.graph.add(Node(op, inputs, name, shape)))

        return hook

    def _inputs(self, values: Any) -> tuple[int, ...]:
        found = (self._node_of.get(_storage(tensor)) for tensor in _tensors(values))
        return tuple(dict.fromkeys(node for node in found if node is not None))

    def _produced(self, values: Any, node: int) -> None:
        for tensor in _tensors(values):
            self._node_of[_storage(tensor)] = node
            self._alive.append(tensor)


def _storage(tensor: Tensor) -> int:
    """The identity of the memory behind a tensor, so that writing into a view counts for the whole."""
    return int(tensor.untyped_storage()._cdata)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
