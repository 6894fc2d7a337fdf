"""Masks and weight columns folded away in the graph of an exported program; the live model is not touched.

A Step mask behind a ReLU is one threshold: hardshrink(relu(x), c) is x where x > c and 0 elsewhere, bit for bit.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

aten = torch.ops.aten

RELU = (aten.relu.default, aten.relu_.default)
ELEMENTWISE = (*RELU, aten.gelu.default, aten.silu.default, aten.hardshrink.default, aten.threshold.default)
"""What may lie between a layer that makes channels and the one that ignores them, besides a batch norm."""


@dataclass(frozen=True)
class Fused:
    """How many Step masks became part of a ReLU, and how many channels that nothing reads were removed."""

    masks: int = 0
    channels: int = 0


def fuse_(module: GraphModule) -> Fused:
    """Fold what can be folded in the graph of `ExportedProgram.module()`."""
    done = Fused(_fuse_masks_(module), _remove_channels_(module))
    module.graph.eliminate_dead_code()
    module.recompile()
    return done


def _fuse_masks_(module: GraphModule) -> int:
    count = 0
    for node in list(module.graph.nodes):
        relu = node.args[0] if node.target is aten.hardshrink.default else None
        if relu is None or relu.target not in RELU or _is_overwritten(relu):
            continue
        source = relu if _is_overwritten(relu.args[0]) else relu.args[0]
        threshold = node.args[1] if len(node.args) > 1 else 0.5  # a default is left out of the graph
        with module.graph.inserting_before(node):
            new = module.graph.call_function(aten.threshold.default, (source, threshold, 0.0))
        new.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
        if not relu.users and relu.target is aten.relu.default:
            module.graph.erase_node(relu)
        count += 1
    return count


def _is_overwritten(node: Any) -> bool:
    """Whether an operator works in place on the node's tensor, so that it holds something else later on."""
    schemas = ((user.args[0], getattr(user.target, "_schema", None)) for user in node.users if user.args)
    return any(first is node and schema is not None and schema.is_mutable for first, schema in schemas)


def _remove_channels_(module: GraphModule) -> int:
    """Take out the channels whose weight columns are all 0, as `fold_` makes them, together with what computes them."""
    removed = 0
    for node in list(module.graph.nodes):
        weight = _weight(module, node)
        if weight is None:
            continue
        columns = weight.ne(0).transpose(0, 1).flatten(1).any(dim=1)
        keep = columns.nonzero().flatten()
        chain = _chain(module, node) if 0 < len(keep) < len(columns) else None
        if chain is None:
            continue
        _narrow_(module, node.args[1], keep, dim=1)
        for part in chain:
            for own in _parameters(part):
                _narrow_(module, own, keep, dim=0)
        removed += len(columns) - len(keep)
    return removed


def _chain(module: GraphModule, node: Node) -> list[Node] | None:
    """The nodes that compute the input of `node` channel by channel, up to the layer that makes it; None where anything
    else reads one of them."""
    found: list[Node] = []
    at = node.args[0]
    while isinstance(at, Node) and len(at.users) == 1:
        found.append(at)
        if _weight(module, at) is not None:
            return found
        norm = at.target is aten.batch_norm.default and all(len(part.users) == 1 for part in _parameters(at))
        if not norm and at.target not in ELEMENTWISE:
            return None
        at = at.args[0]
    return None


def _weight(module: GraphModule, node: Node) -> Tensor | None:
    """The weight of a conv without groups or of a linear layer, where it and the bias are its own."""
    if node.target not in (aten.conv2d.default, aten.linear.default):
        return None
    groups = node.args[6] if len(node.args) > 6 else 1
    if groups != 1 or any(len(part.users) > 1 or part.op != "get_attr" for part in _parameters(node)):
        return None
    return _constant(module, node.args[1])


def _parameters(node: Node) -> list[Node]:
    return [part for part in node.args[1:5] if isinstance(part, Node)]


def _narrow_(module: GraphModule, node: Any, keep: Tensor, dim: int) -> None:
    found = _constant(module, node)
    assert found is not None
    owner, _, name = str(node.target).rpartition(".")
    holder = module.get_submodule(owner)
    narrow = found.detach().index_select(dim, keep)
    setattr(holder, name, nn.Parameter(narrow) if name in holder._parameters else narrow)


def _constant(module: GraphModule, node: Any) -> Tensor | None:
    """The tensor that a node always gives, or None where it depends on the images."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    owner, _, name = str(node.target).rpartition(".")
    found = getattr(module.get_submodule(owner), name)
    return found if isinstance(found, Tensor) else None
