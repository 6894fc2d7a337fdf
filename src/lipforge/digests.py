"""The bytes of tensors, by which models and images are told apart."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensor_bytes(tensor: Tensor) -> Any:
    """The values of a tensor as bytes; of one that consists of others, as torchao's do, the bytes of all of these."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return b"".join(bytes(tensor_bytes(getattr(tensor, name))) for name in names)
    plain = tensor.detach()
    plain = plain.dequantize() if plain.is_quantized else plain
    plain = plain.resolve_conj().resolve_neg().cpu()
    plain = (plain.to_dense() if plain.layout != torch.strided else plain).contiguous()
    return plain.flatten().view(torch.uint8).numpy().data


def state_tensors(state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state dict by name, also those in tuples: torch keeps the weights of quantized layers so."""
    for name, value in state.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, tuple | list):
            yield from state_tensors({f"{name}.{place}": item for place, item in enumerate(value)})
