"""A model as a list of nodes, each with a sound bound: affine maps, functions of one number, max pooling.

One forward pass of a float64 copy is recorded as ATen operators, so control flow, functional calls and in-place
operators are what they were in that pass. Forged functions and test-time views are taken from lipforge, not recorded.
"""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx

from lipforge import rng
from lipforge.certification.relaxations import Curve, MaxPool, mask_curve
from lipforge.errors import ModelError
from lipforge.forge import forges, set_tta_, tta_of
from lipforge.outputs import logits_in
from lipforge.recording import record
from lipforge.types import Classifier

aten = torch.ops.aten
RECORDED = 7  # images in the recorded pass: a size that says which dimension holds the images
RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
NORMS = (aten.native_batch_norm.default, aten.cudnn_batch_norm.default)
PRODUCTS = (aten.addmm.default, aten.mm.default)
SAME_SIGN = frozenset({
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default, aten.clone.default,
    aten.alias.default, aten.detach.default, aten.permute.default, aten.transpose.int, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.flip.default, aten.cat.default,
    aten.constant_pad_nd.default, aten.reflection_pad2d.default, aten.replication_pad2d.default, aten.mean.dim,
    aten.sum.dim_IntList, aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default, aten.upsample_nearest2d.vec,
    aten.upsample_nearest2d.default, aten.rsub.Scalar, aten.copy.default,
    aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar,
})  # fmt: skip
"""Operators that are affine in each argument alone, each output with coefficients of one sign per argument."""
SUPPORTED = (
    "conv, linear, batch norm, ReLU, leaky ReLU, abs, sums, concatenation, average and max pooling, padding, slices "
    "and reshapes"
)
UNSUPPORTED = {
    "native_layer_norm": "layer norm", "native_group_norm": "group norm", "softmax": "softmax", "gelu": "GELU",
    "bmm": "products of activations", "silu": "SiLU", "sigmoid": "sigmoid", "tanh": "tanh", "elu": "ELU",
}  # fmt: skip
"""Operators without a bound, by the names that users know."""
CURVES = (aten.relu.default, aten.leaky_relu.default, aten.abs.default)
"""Functions of one number that are linear on both sides of 0."""


@dataclass(frozen=True)
class Affine:
    """`apply` maps batches of the parents to a batch; `radius` maps half-widths of boxes around them; `transpose` maps
    coefficients (R, ...) of the output to those of the parents."""

    apply: Callable[..., Tensor]
    radius: Callable[..., Tensor]
    transpose: Callable[[Tensor], tuple[Tensor, ...]]
    offset: Tensor


Op = Affine | Curve | MaxPool


@dataclass(frozen=True)
class Node:
    """One operator: node 0 is the image, and parents come before their children."""

    parents: tuple[int, ...]
    op: Op | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """The nodes of a classifier in the order of computation; the last one has the logits (N, K)."""

    nodes: tuple[Node, ...]

    def values(self, x: Tensor) -> list[Tensor]:
        """What every node computes from images x (N, C, H, W)."""
        values = [x]
        for node in self.nodes[1:]:
            assert node.op is not None
            values.append(node.op.apply(*(values[parent] for parent in node.parents)))
        return values

    def __call__(self, x: Tensor) -> Tensor:
        return self.values(x)[-1]

    def consumers(self, index: int) -> list[Curve | MaxPool]:
        """The operators with a relaxation that read the output of a node, which therefore needs tight bounds."""
        return [node.op for node in self.nodes if index in node.parents and isinstance(node.op, Curve | MaxPool)]

    def is_tightened(self, index: int) -> bool:
        """Whether CROWN bounds the outputs of a node: they are affine, and something behind them bends."""
        return isinstance(self.nodes[index].op, Affine) and bool(self.consumers(index))


def network_of(model: Classifier, image: Tensor) -> Network:
    """The nodes of `model` on images like `image` (C, H, W), in float64; an error names what has no bound."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"bounds need a model's layers, so a torch.nn.Module, got {type(model).__name__}; {_WAY_OUT}")
    tta, inner = tta_of(model), copy.deepcopy(model).double().requires_grad_(False)
    set_tta_(inner, None)
    others = rng.uniform(0, torch.arange(RECORDED - 1), stream="recorded", shape=tuple(image.shape)).to(image.device)
    x = torch.cat([image.detach()[None], others]).double()
    network = _recorded(inner, x)
    if tta is not None:
        if tta.mean != "logits":
            raise ModelError(f"test-time augmentation by the mean of {tta.mean} has no bound here; {_WAY_OUT}")
        network = _averaged(network, tta.transforms, x)
    _check_agrees(network, copy.deepcopy(model).double(), x)
    return network


_WAY_OUT = "`lipforge certify` (randomised smoothing) takes any model"


def _recorded(model: nn.Module, x: Tensor) -> Network:
    untouched = copy.deepcopy(model)
    try:
        return Network(tuple(_Builder(model).build(x)))
    except _UnboundedError as error:
        raise _unsupported(error.operator, untouched, x) from None


def _averaged(network: Network, transforms: tuple[Callable[[Tensor], Tensor], ...], x: Tensor) -> Network:
    """The mean of the network's logits over transformed copies of the image, each with nodes of its own."""
    nodes, ends = [network.nodes[0]], []
    for transform in transforms:
        nodes.append(Node((0,), _affine(transform, (x,)), network.nodes[0].shape))
        shift = len(nodes) - 1
        for node in network.nodes[1:]:
            nodes.append(Node(tuple(parent + shift for parent in node.parents), node.op, node.shape))
        ends.append(len(nodes) - 1)
    logits = x.new_zeros(1, *nodes[-1].shape)
    mean = _affine(lambda *each: torch.stack(each).mean(0), (logits,) * len(ends))
    return Network((*nodes, Node(tuple(ends), mean, nodes[-1].shape)))


def _check_agrees(network: Network, model: nn.Module, x: Tensor) -> None:
    """Raise if the nodes compute something else than the model, or if an image's logits depend on the other images."""
    with torch.no_grad():
        expected = logits_in(model(x))
        found, alone = network(x), network(x[-1:])
    near = partial(torch.allclose, rtol=0, atol=1e-6 * float(1 + expected.abs().max()))
    if found.shape != expected.shape or not near(found, expected) or not near(found[-1:], alone):
        raise ModelError(
            "the recorded operators do not compute what the model computes on other images: is it random, or does it "
            f"depend on the values or the number of its images? {_WAY_OUT}"
        )


class _Builder:
    """From recorded operators to nodes: what does not depend on the image is computed once and kept as a constant."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.forges = model, forges(model)
        self.nodes: list[Node] = []
        self.values: list[Tensor] = []  # the recorded images' values, from which shapes are read
        self.made: dict[FxNode, Any] = {}  # a constant, or the index of a node as _At

    def build(self, x: Tensor) -> list[Node]:
        for name, forge in self.forges.items():
            forge.forward = partial(_marked, site=name)  # type: ignore[method-assign]  # on a copy of the model
        with torch.no_grad():
            graph = _traced(self.model, x)
            for node in graph.graph.nodes:
                self.made[node] = self._step(graph, node, x)
        if not isinstance(end := self.made[node], _At):
            raise ModelError(f"the model's logits do not depend on its images; {_WAY_OUT}")
        return _needed(self.nodes[: end.index + 1])

    def _step(self, graph: nn.Module, node: FxNode, x: Tensor) -> Any:
        if node.op == "placeholder":
            return self._add((), None, x)
        if node.op == "get_attr":
            return operator.attrgetter(cast(str, node.target))(graph)
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda other: self.made[other])
        if node.op == "output":
            return args[0]
        flat = [part for arg in (*args, *kwargs.values()) for part in (arg if isinstance(arg, list | tuple) else [arg])]
        parents = [part for part in flat if isinstance(part, _At)]
        if not parents:
            return node.target(*args, **kwargs)  # type: ignore[operator]  # an operator
        if node.target is operator.getitem and args[1] == 0:
            return args[0]  # of batch norm and max pooling only the first output has a bound
        return self._operator(node.target, args, kwargs, tuple(part.index for part in parents))

    def _operator(self, target: Any, args: Any, kwargs: Any, parents: tuple[int, ...]) -> "_At":
        inputs = tuple(self.values[parent] for parent in parents)
        if target is torch.ops.lipforge.forged.default:
            return self._forged(args[1], parents[0])
        if target in CURVES:
            apply = partial(_called, target, args, kwargs)
            bend = Curve(apply, inputs[0].new_zeros(1), is_relu=target is aten.relu.default)
            return self._add(parents, bend, apply(*inputs))
        if target is aten.max_pool2d_with_indices.default:
            op = MaxPool.of(*args[1:], **kwargs)
            if op is None:
                raise _UnboundedError(target)
            return self._add(parents, op, op.apply(*inputs))
        try:
            affine = _affine_of(target, args, kwargs, inputs)
        except RuntimeError:  # a constant that has the number of images in its shape
            affine = None
        if affine is None or not affine.offset.isfinite().all():  # padding with -inf, say
            raise _UnboundedError(target)
        return self._add(parents, affine, affine.apply(*inputs))

    def _forged(self, site: str, parent: int) -> "_At":
        """A forged function, of the number in front of a ReLU where there is one: one relaxation, not two in a row."""
        forge, value, before = self.forges[site], self.values[parent], self.nodes[parent]
        behind_relu = isinstance(before.op, Curve) and before.op.is_relu
        curve = mask_curve(forge, value, behind_relu=behind_relu)
        return self._add(before.parents if behind_relu else (parent,), curve, curve.apply(value))

    def _add(self, parents: tuple[int, ...], op: Op | None, value: Tensor) -> "_At":
        if len(value) != RECORDED:
            raise _UnboundedError("")
        self.nodes.append(Node(parents, op, tuple(value.shape[1:])))
        self.values.append(value)
        return _At(len(self.nodes) - 1)


def _traced(model: nn.Module, x: Tensor) -> torch.fx.GraphModule:
    """The operators of one forward pass, without those that nothing depends on."""
    try:
        graph = make_fx(torch.func.functionalize(lambda images: logits_in(model(images))))(x)
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise ModelError(
            f"the model's operators cannot be recorded; does its code depend on the values of its images? {_WAY_OUT} "
            f"({first})"
        ) from error
    graph.graph.eliminate_dead_code()
    return graph


def _needed(nodes: list[Node]) -> list[Node]:
    """The image and the nodes that the last one depends on; a ReLU that is joined with a mask may not be needed."""
    needed = {0, len(nodes) - 1}
    for index in range(len(nodes) - 1, 0, -1):
        needed.update(nodes[index].parents if index in needed else ())
    place = {old: new for new, old in enumerate(sorted(needed))}
    return [replace(nodes[old], parents=tuple(place[parent] for parent in nodes[old].parents)) for old in place]


@dataclass(frozen=True)
class _At:
    """A value that depends on the image: the index of its node."""

    index: int


@torch.library.custom_op("lipforge::forged", mutates_args=())
def _marked(x: Tensor, site: str) -> Tensor:
    """Stands for the forged function of a site in a recorded pass."""
    return x.clone()


def _called(target: Any, args: Any, kwargs: Any, *inputs: Tensor) -> Tensor:
    """The operator's output with `inputs` in the place of what depends on the image."""
    rest = iter(inputs)

    def filled(arg: Any) -> Any:
        if isinstance(arg, list | tuple):
            return [filled(part) for part in arg]
        return next(rest) if isinstance(arg, _At) else arg

    output = target(*filled(args), **{name: filled(value) for name, value in kwargs.items()})
    return output if isinstance(output, Tensor) else output[0]


def _affine_of(target: Any, args: Any, kwargs: Any, inputs: tuple[Tensor, ...]) -> Affine | None:
    """The affine map of an operator and its constant arguments, or None where it is not known to be one."""
    apply = partial(_called, target, args, kwargs)
    if target in RESHAPES:
        shape = apply(*inputs).shape[1:]
        return _affine(lambda x: x.reshape(len(x), *shape), inputs)
    if target is aten.convolution.default and len(inputs) == 1 and isinstance(args[0], _At) and not args[6]:
        return _convolution(apply, args, inputs[0])
    if target in PRODUCTS and len(inputs) == 1 and not kwargs and isinstance(args[-2], _At):
        matrix = args[-1]
        return Affine(apply, lambda r: r @ matrix.abs(), lambda a: (a @ matrix.T,), apply(inputs[0][:1] * 0))
    products = (aten.mul.Tensor, aten.div.Tensor)
    if target in products and (len(inputs) > 1 or (not isinstance(args[0], _At) and target is aten.div.Tensor)):
        return None
    norm = target in NORMS and len(inputs) == 1 and not args[5]
    return _affine(apply, inputs) if norm or target in SAME_SIGN else None


def _affine(apply: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Affine:
    """The map of an operator whose coefficients have one sign per output and argument: |L| r is then |L r|."""
    zeros = tuple(torch.zeros_like(x[:1]) for x in inputs)
    offset = apply(*zeros)

    def radius(*radii: Tensor) -> Tensor:
        nothing = [torch.zeros_like(r) for r in radii]
        return sum((apply(*nothing[:i], r, *nothing[i + 1 :]) - offset).abs() for i, r in enumerate(radii))  # type: ignore[return-value]  # of tensors

    def transpose(a: Tensor) -> tuple[Tensor, ...]:
        rows = [zero.expand(len(a), *zero.shape[1:]) for zero in zeros]
        return cast(tuple[Tensor, ...], torch.func.vjp(apply, *rows)[1](a))

    return Affine(apply, radius, transpose, offset)


def _convolution(apply: Callable[..., Tensor], args: Any, x: Tensor) -> Affine:
    _, weight, _, *rest = args
    zero = torch.zeros_like(x[:1])

    def transpose(a: Tensor) -> tuple[Tensor, ...]:
        rows = zero.expand(len(a), *zero.shape[1:])
        return (aten.convolution_backward(a, rows, weight, None, *rest, [True, False, False])[0],)

    return Affine(apply, lambda r: aten.convolution(r, weight.abs(), None, *rest), transpose, apply(zero))


class _UnboundedError(Exception):
    """An operator that has no bound, or none ("") that mixes the images; it is caught where its layer can be named."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.operator = getattr(target, "overloadpacket", target).__name__ if target else ""


def _unsupported(operator: str, model: nn.Module, x: Tensor) -> ModelError:
    """The error for people. It names what they know: in a transformer not how the class token is joined to the
    patches, which comes first, but attention, layer norm and GELU."""
    layers = _layers_by_operator(model, x)
    words = {name: _word(name) for name in layers if _word(name)}
    if not operator and not words:
        return ModelError(f"a layer mixes its images, or puts them elsewhere than in dimension 0; {_WAY_OUT}")
    first = operator.strip("_") if _word(operator) or not words else next(iter(words))
    found = list(dict.fromkeys([_word(first) or f"its operator {first}", *words.values()]))
    return ModelError(
        f"layer {layers.get(first, type(model).__name__)} has no bound: {', '.join(found)} "
        f"{'is' if len(found) == 1 else 'are'} not supported. Bounds exist for {SUPPORTED}; {_WAY_OUT}"
    )


def _word(operator: str) -> str:
    if "attention" in operator or "transformer" in operator:
        return "attention"
    return UNSUPPORTED.get(operator.strip("_"), "")


def _layers_by_operator(model: nn.Module, x: Tensor) -> dict[str, str]:
    """The layer that calls each operator first, by its name and class, in the order of the first calls."""
    inside: list[str] = []
    found: dict[str, str] = {}

    def seen(name: str, read: tuple[int, ...], output: Any) -> None:
        found.setdefault(name.strip("_"), inside[-1] if inside else type(model).__name__)

    hooks = []
    for name, module in model.named_modules():
        text = f"'{name}' ({type(module).__name__})" if name else type(module).__name__
        hooks.append(module.register_forward_pre_hook(lambda module, args, text=text: inside.append(text)))
        hooks.append(module.register_forward_hook(lambda module, args, output: (inside.pop(), None)[1]))
    record(model, x[:1], seen, hooks)
    return found
