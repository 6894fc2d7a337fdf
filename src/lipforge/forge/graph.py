"""The data flow of one forward pass, and what part each layer plays in it.

No code of the model is read or changed. Every operator is recorded, so functional and in-place activations, `+=`,
slices and paddings are all part of the graph; conv, linear and attention layers are single nodes.

A residual block is an addition of two paths that start from one activation: the path with more layers is the main
path, the shorter one (at most one layer, the projection) the shortcut. The innermost addition decides.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

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
    """The graph of what happens when `model` runs once on `image` (1, C, H, W), without gradients."""
    tracer, hooks = _Tracer(image), []
    for name, module in model.named_modules():
        if isinstance(module, LAYERS + ACTIVATIONS):
            hooks.append(module.register_forward_pre_hook(tracer.enter, with_kwargs=True, prepend=True))
            hooks.append(module.register_forward_hook(tracer.leave(name), with_kwargs=True))
    record(model, image, tracer.operator, hooks)
    return tracer.graph


class _Tracer:
    """Builds the graph: an operator inside a layer or an activation module is part of that module's node."""

    def __init__(self, image: Tensor) -> None:
        self.graph = Graph()
        self._depth = 0
        self._entered: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._node_of: dict[int, int] = {}
        self._produced(image, self.graph.add(Node("image", ())))

    def operator(self, name: str, read: tuple[int, ...], output: Any) -> None:
        inputs = self._nodes(read)
        if self._depth == 0 and inputs:
            self._produced(output, self.graph.add(Node(name if name.startswith("_") else name.rstrip("_"), inputs)))

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        found = tensors((args, kwargs))
        self._entered.append((self._nodes(map(storage, found)), tuple(found[0].shape) if found else ()))
        self._depth += 1

    def leave(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._depth -= 1
            inputs, shape = self._entered.pop()
            if self._depth == 0 and inputs:
                op = "layer" if isinstance(module, LAYERS) else "activation"
                self._produced(output, self.graph.add(Node(op, inputs, name, shape)))

        return hook

    def _nodes(self, storages: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self._node_of[key] for key in storages if key in self._node_of))

    def _produced(self, output: Any, node: int) -> None:
        self._node_of.update(dict.fromkeys(map(storage, tensors(output)), node))


@dataclass(frozen=True)
class Call:
    """The first call of a layer: its node, its role, the shape that went in, and where its channels are.

    `channels` holds every channel count that the layer was called with: a shared activation may see several.
    """

    node: int
    role: Role
    input_shape: tuple[int, ...]
    channel_dim: int
    channels: frozenset[int]


def roles(graph: Graph, layers: dict[str, nn.Module]) -> dict[str, Call]:
    """What every layer and activation module that was called does, in the order of first calls."""
    gates = _gated_layers(graph)
    found: dict[int, Role] = {}
    inner = 0
    for main, shortcut in _residual_paths(graph, layers, gates):
        attention = any(_is_attention(index, graph, layers) for index in graph.members(main & ~inner))
        inner |= main | shortcut
        for index in graph.layers(shortcut):
            found.setdefault(index, "shortcut")
        fresh = [index for index in graph.layers(main) if index not in found and index not in gates]
        for index in fresh:
            found[index] = "attention" if attention else _main_role(index, fresh, graph, layers)
    found.update(dict.fromkeys(gates, "gate"))
    everything = (1 << len(graph.nodes)) - 1
    ordered = graph.layers(everything)
    ends: dict[int, Role] = {ordered[-1]: "last", ordered[0]: "first"} if ordered else {}
    result: dict[str, Call] = {}
    for index in graph.members(everything):
        node = graph.nodes[index]
        if node.layer is not None:
            role = "activation" if node.op == "activation" else found.get(index) or ends.get(index, "between")
            dim = _channel_dim(index, graph, layers)
            known = result.get(node.layer) or Call(index, role, node.input_shape, dim, frozenset())
            channels = known.channels | set(node.input_shape[dim:][:1])
            result[node.layer] = dataclasses.replace(known, channels=channels)
    return result


def _is_attention(index: int, graph: Graph, layers: dict[str, nn.Module]) -> bool:
    layer = layers.get(graph.nodes[index].layer or "")
    return graph.is_product(index) or isinstance(layer, nn.MultiheadAttention)


def _channel_dim(index: int, graph: Graph, layers: dict[str, nn.Module]) -> int:
    """Where the channels are, counted from the end: before the positions for a conv, last for a linear layer.

    An activation has them where the nearest layer put them; if the sizes say otherwise (channels last behind a
    permuted conv), the sizes are right.
    """
    nearest = graph.layers(graph.ancestors[index])[-1:]
    layer = layers[graph.nodes[nearest[0]].layer or ""] if nearest else None
    if not isinstance(layer, CONVS):
        return -1
    expected, shape = -1 - len(layer.kernel_size), graph.nodes[index].input_shape
    if graph.nodes[index].op == "activation" and layer.out_channels not in shape[expected:][:1]:
        return -1
    return expected


def _residual_paths(graph: Graph, layers: dict[str, nn.Module], gates: set[int]) -> list[tuple[int, int]]:
    """(main, shortcut) of every residual addition as bit masks, innermost first."""
    candidates = []
    before_a_layer = 0
    for index in graph.layers((1 << len(graph.nodes)) - 1):
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
    candidates.sort(key=lambda pair: (pair[0] | pair[1]).bit_count())
    result, taken = [], set(gates)
    for pair in candidates:
        fresh = {path: [index for index in graph.layers(path) if index not in taken] for path in pair}
        short, main = sorted(pair, key=lambda path: (len(fresh[path]), path.bit_count()))
        modules = {path: [layers[graph.nodes[index].layer or ""] for index in fresh[path]] for path in pair}
        if _is_shortcut(modules[short], beside=modules[main]):
            result.append((main, short))
            taken.update(fresh[short] + fresh[main])
    return result


def _is_shortcut(short: list[nn.Module], *, beside: list[nn.Module]) -> bool:
    """Whether the shorter of two paths is a shortcut: no layer, or one beside a longer or clearly larger path."""
    if len(short) > 1 or not beside:
        return False
    if len(short) == len(beside) == 1:
        return is_pointwise(short[0]) and isinstance(beside[0], CONVS) and not is_pointwise(beside[0])
    return True


def _gated_layers(graph: Graph) -> set[int]:
    """Layers that only compute a factor for an activation they branch off from, as in squeeze-and-excitation."""
    found: set[int] = set()
    for node in graph.nodes:
        if node.op == "mul" and len(node.inputs) == 2:
            trunk, gate = sorted(node.inputs)
            if graph.ancestors[gate] >> trunk & 1:
                found.update(graph.layers(graph.ancestors[gate] & ~graph.ancestors[trunk]))
    return found


def _main_role(index: int, path: list[int], graph: Graph, layers: dict[str, nn.Module]) -> Role:
    kinds = {member: layers[graph.nodes[member].layer or ""] for member in path}
    layer = kinds[index]
    if is_depthwise(layer):
        return "depthwise"
    if isinstance(layer, nn.Linear):
        return "mlp"
    spatial = any(
        isinstance(kind, CONVS) and not is_pointwise(kind) and not is_depthwise(kind) for kind in kinds.values()
    )
    position = path.index(index)
    neighbours = [kinds[member] for member in path[max(position - 1, 0) : position + 2] if member != index]
    in_mlp = is_pointwise(layer) and not spatial and any(is_pointwise(other) for other in neighbours)
    return "mlp" if in_mlp else "conv"


def is_pointwise(layer: nn.Module) -> bool:
    """A conv that sees one position at a time: a linear layer in disguise."""
    return isinstance(layer, CONVS) and all(size == 1 for size in layer.kernel_size)


def is_depthwise(layer: nn.Module) -> bool:
    """A conv with one group per input channel."""
    return isinstance(layer, CONVS) and layer.groups == layer.in_channels > 1
