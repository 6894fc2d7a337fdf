"""The data flow of one forward pass, and what part each layer plays in it.

Every operator is recorded, so functional and in-place activations, `+=`, slices and paddings are in the graph; conv,
linear and attention layers are single nodes. A residual block is an addition of two paths that start from one
activation: the one with more layers is the main path, the other (at most one layer, the projection) the shortcut.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from torch import Tensor, nn

from lipforge.recording import record, storage, tensors

ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Hardswish, nn.Mish)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (*CONVS, nn.Linear, nn.MultiheadAttention)
PRODUCTS = {"mm", "bmm", "matmul", "baddbmm", "_native_multi_head_attention"}
JOINS = ("add", "sub", "rsub", "addcmul", "lerp")

Role = Literal["conv", "mlp", "depthwise", "shortcut", "attention", "gate", "first", "last", "between", "activation"]


@dataclass(frozen=True)
class Node:
    """One operator or module call: what fed it, and for a module its name and the shape of its input."""

    op: str
    inputs: tuple[int, ...]
    name: str = ""
    module: nn.Module | None = None
    input_shape: tuple[int, ...] = ()

    @property
    def is_attention(self) -> bool:
        """Whether it multiplies two activations as matrices, or is an attention layer that does so inside."""
        product = self.op.startswith("_scaled_dot_product") or (self.op in PRODUCTS and len(self.inputs) > 1)
        return product or isinstance(self.module, nn.MultiheadAttention)


class Graph:
    """Nodes in the order they ran; node 0 is the image. Sets of nodes are bit masks."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.ancestors: list[int] = []
        self._layers: list[int] = []

    def add(self, node: Node) -> int:
        index = len(self.nodes)
        above = 1 << index
        for parent in node.inputs:
            above |= self.ancestors[parent]
        self.nodes.append(node)
        self.ancestors.append(above)
        if isinstance(node.module, LAYERS):
            self._layers.append(index)
        return index

    def layers(self, bits: int = -1) -> list[int]:
        """The conv, linear and attention calls in a bit mask, or all of them, in the order they ran."""
        return [index for index in self._layers if bits >> index & 1]

    def modules(self, indices: Iterable[int]) -> list[nn.Module]:
        return [cast(nn.Module, self.nodes[index].module) for index in indices]


def trace(model: nn.Module, image: Tensor) -> Graph:
    """The graph of what happens when `model` runs once on `image` (1, C, H, W), without gradients."""
    tracer, hooks = _Tracer(image), []
    for name, module in model.named_modules():
        if isinstance(module, LAYERS + ACTIVATIONS):
            hooks.append(module.register_forward_pre_hook(tracer.enter, with_kwargs=True, prepend=True))
            hooks.append(module.register_forward_hook(partial(tracer.leave, name), with_kwargs=True))
    record(model, image, tracer.operator, hooks)
    return tracer.graph


class _Tracer:
    """Builds the graph: an operator inside a layer or an activation module is part of that module's node."""

    def __init__(self, image: Tensor) -> None:
        self.graph = Graph()
        self._entered: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._node_of: dict[int, int] = {}
        self._add(Node("image", ()), image)

    def operator(self, name: str, read: tuple[int, ...], output: Any) -> None:
        inputs = self._nodes(read)
        if not self._entered and inputs:
            self._add(Node(name if name.startswith("_") else name.rstrip("_"), inputs), output)

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        found = tensors((args, kwargs))
        self._entered.append((self._nodes(map(storage, found)), tuple(found[0].shape) if found else ()))

    def leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs, shape = self._entered.pop()
        if not self._entered and inputs:
            self._add(Node("module", inputs, name, module, shape), output)

    def _nodes(self, storages: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self._node_of[key] for key in storages if key in self._node_of))

    def _add(self, node: Node, output: Any) -> None:
        self._node_of.update(dict.fromkeys(map(storage, tensors(output)), self.graph.add(node)))


@dataclass(frozen=True)
class Call:
    """The first call of a layer; `channels` is 0 where calls differ in it, as those of a shared activation may."""

    node: int
    role: Role
    input_shape: tuple[int, ...]
    channel_dim: int
    channels: int


def roles(graph: Graph) -> dict[str, Call]:
    """What every layer and activation module that was called does, in the order of first calls."""
    found = _block_roles(graph)
    ordered = graph.layers()
    ends: dict[int, Role] = {ordered[-1]: "last", ordered[0]: "first"} if ordered else {}
    result: dict[str, Call] = {}
    for index, node in enumerate(graph.nodes):
        if node.module is not None:
            other: Role = "activation" if isinstance(node.module, ACTIVATIONS) else "between"
            role = found.get(index) or ends.get(index, other)
            dim = _channel_dim(index, graph)
            channels = next(iter(node.input_shape[dim:]), 0)
            first = result.setdefault(node.name, Call(index, role, node.input_shape, dim, channels))
            if channels != first.channels:
                result[node.name] = dataclasses.replace(first, channels=0)
    return result


def _block_roles(graph: Graph) -> dict[int, Role]:
    gates = _gated_layers(graph)
    found: dict[int, Role] = {}
    inner = 0
    for main, shortcut in _residual_paths(graph, gates):
        own = main & ~inner
        attention = any(node.is_attention and own >> index & 1 for index, node in enumerate(graph.nodes))
        inner |= main | shortcut
        for index in graph.layers(shortcut):
            found.setdefault(index, "shortcut")
        fresh = [index for index in graph.layers(main) if index not in found and index not in gates]
        path = graph.modules(fresh)
        for position, index in enumerate(fresh):
            found[index] = "attention" if attention else _main_role(position, path)
    return found | dict.fromkeys(gates, "gate")


def _channel_dim(index: int, graph: Graph) -> int:
    """Where the channels are, counted from the end: before the positions for a conv, last for a linear layer.

    An activation has them where the nearest layer put them, unless the sizes say otherwise, as behind a permutation.
    """
    node, nearest = graph.nodes[index], graph.layers(graph.ancestors[index])[-1:]
    layer = graph.nodes[nearest[0]].module if nearest else None
    if not isinstance(layer, CONVS):
        return -1
    expected = -1 - len(layer.kernel_size)
    elsewhere = isinstance(node.module, ACTIVATIONS) and layer.out_channels not in node.input_shape[expected:][:1]
    return -1 if elsewhere else expected


def _residual_paths(graph: Graph, gates: set[int]) -> list[tuple[int, int]]:
    """(main, shortcut) of every residual addition as bit masks, innermost first."""
    candidates = []
    before_a_layer = 0
    for index in graph.layers():
        before_a_layer |= graph.ancestors[index]
    for index, node in enumerate(graph.nodes):
        # What no layer follows is the sum of two heads, not a block.
        if node.op in JOINS and len(node.inputs) == 2 and before_a_layer >> index & 1:
            left, right = (graph.ancestors[parent] for parent in node.inputs)
            common = left & right
            start = common.bit_length() - 1
            # A block starts behind a layer: whatever branches off the image itself is a stem.
            if start > 0 and graph.layers(graph.ancestors[start]):
                candidates.append((left & ~common, right & ~common))
    result, taken = [], set(gates)
    for pair in sorted(candidates, key=lambda pair: (pair[0] | pair[1]).bit_count()):
        fresh = {path: [index for index in graph.layers(path) if index not in taken] for path in pair}
        short, main = sorted(pair, key=lambda path: (len(fresh[path]), path.bit_count()))
        if _is_shortcut(graph.modules(fresh[short]), beside=graph.modules(fresh[main])):
            result.append((main, short))
            taken.update(fresh[short] + fresh[main])
    return result


def _is_shortcut(short: list[nn.Module], *, beside: list[nn.Module]) -> bool:
    """Whether the shorter of two paths is a shortcut: no layer, or one beside a longer or clearly larger path."""
    if len(short) == len(beside) == 1:
        return is_pointwise(short[0]) and isinstance(beside[0], CONVS) and not is_pointwise(beside[0])
    return len(short) <= 1 and bool(beside)


def _gated_layers(graph: Graph) -> set[int]:
    """Layers that only compute a factor for an activation they branch off from, as in squeeze-and-excitation."""
    found: set[int] = set()
    for node in graph.nodes:
        if node.op == "mul" and len(node.inputs) == 2:
            trunk, gate = sorted(node.inputs)
            if graph.ancestors[gate] >> trunk & 1:
                found.update(graph.layers(graph.ancestors[gate] & ~graph.ancestors[trunk]))
    return found


def _main_role(position: int, path: list[nn.Module]) -> Role:
    layer = path[position]
    if is_depthwise(layer):
        return "depthwise"
    if isinstance(layer, nn.Linear):
        return "mlp"
    spatial = any(isinstance(kind, CONVS) and not is_pointwise(kind) and not is_depthwise(kind) for kind in path)
    neighbours = path[max(position - 1, 0) : position] + path[position + 1 : position + 2]
    return "mlp" if is_pointwise(layer) and not spatial and any(map(is_pointwise, neighbours)) else "conv"


def is_pointwise(layer: nn.Module) -> bool:
    """A conv that sees one position at a time: a linear layer in disguise."""
    return isinstance(layer, CONVS) and all(size == 1 for size in layer.kernel_size)


def is_depthwise(layer: nn.Module) -> bool:
    """A conv with one group per input channel."""
    return isinstance(layer, CONVS) and layer.groups == layer.in_channels > 1
