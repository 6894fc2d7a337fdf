"""The one place that decides what logits are in whatever a model returns."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lipforge.errors import ModelError


def logits_in(output: Any, *, rows: int | None = None) -> Tensor:
    """The logits (N, K) in what a model returned, or an error that names what was found.

    They are the output itself, its attribute `logits` (transformers, torchvision's Inception), the entry "logits" of a
    mapping or its only tensor, or the first item of a tuple or list. With `rows` N must be that.

    >>> import torch
    >>> logits_in({"features": None, "scores": torch.zeros(2, 10)}).shape
    torch.Size([2, 10])
    """
    found = output if isinstance(output, Tensor) else _candidate(output)
    if isinstance(found, Tensor) and found.ndim == 2 and rows in (None, len(found)):
        return found
    raise ModelError(
        f"the model must return logits ({rows or 'N'}, K), an object with them as .logits, a dict with them as "
        f"'logits' or a tuple that starts with them, got {_described(output)}; wrap it in a module that returns them"
    )


def _candidate(output: Any) -> Any:
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, Mapping):
        tensors = [value for value in output.values() if isinstance(value, Tensor)]
        return output.get("logits", tensors[0] if len(tensors) == 1 else None)
    return output[0] if isinstance(output, tuple | list) and output else None


def _described(output: Any) -> str:
    """A type, and the shapes of the tensors in it.

    >>> import torch
    >>> _described((torch.zeros(2), None))
    'tuple (0: (2,), 1: NoneType)'
    """
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    parts: Mapping[Any, Any] = {}
    if isinstance(output, Mapping):
        parts = output
    elif isinstance(output, tuple | list):
        parts = dict(enumerate(output))
    elif hasattr(output, "logits"):
        parts = {"logits": output.logits}
    shown = (
        f"{key}: {_described(value) if isinstance(value, Tensor) else type(value).__name__}"
        for key, value in parts.items()
    )
    return type(output).__name__ + (f" ({', '.join(shown)})" if parts else "")
