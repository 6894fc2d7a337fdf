"""A model that computes in 16 bit, as on the device it is deployed to, to be judged like any other.

This is not the `precision` of an attack: that is about a copy to search on, while the model itself decides in float32.
Here the model that decides has 16 bit.
"""

import copy
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from lipforge.batching import check_eval, device_of
from lipforge.errors import InputError, ModelError
from lipforge.outputs import logits_in
from lipforge.results import Change
from lipforge.runs import change_of
from lipforge.types import Classifier

Dtype = Literal["float32", "bfloat16", "float16"]


class InDtype(nn.Module):
    """A model whose weights and activations have a dtype: images are rounded to it, logits come back as the images'."""

    def __init__(self, model: nn.Module, dtype: str) -> None:
        super().__init__()
        self.dtype, self._change = dtype, change_of(model)
        self.model = copy.deepcopy(model).to(getattr(torch, dtype))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return logits_in(self.model(x.to(getattr(torch, self.dtype)))).to(x.dtype)

    def lipforge_change(self, model: nn.Module) -> Change | None:
        """What lipforge changed in the model before it was converted."""
        return self._change

    def extra_repr(self) -> str:
        return f"{self.dtype}, {self._change}"  # with the change: TTA is seen neither in tensors nor in names


def in_dtype(model: nn.Module, images: Tensor, dtype: str) -> nn.Module:
    """A copy of `model` that computes in `dtype`, tried on the first of `images`; with "float32" the model itself.

    It takes images and gives logits in float32. An error if the model cannot run forward and back in that dtype where
    it is, or if the logits are not finite.
    """
    check_dtype(dtype)
    if dtype == "float32":
        return model
    check_eval(model)
    made = InDtype(model, dtype)
    image = images[:1].detach().to(device_of(model)).requires_grad_()
    other = "bfloat16" if dtype == "float16" else "float16"
    try:
        with torch.enable_grad():
            logits = made(image)
            if logits.requires_grad:  # one without a gradient can be attacked without
                torch.autograd.grad(logits.sum(), image)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"the model does not run in {dtype} on {image.device}: {reason}; use {other}, float32 or another device"
        ) from error
    if not logits.isfinite().all():
        raise ModelError(f"in {dtype} the model returned NaN or infinite logits; use {other} or float32")
    return made


def check_dtype(dtype: str) -> None:
    """Raise unless a model can be judged in it."""
    if dtype not in get_args(Dtype):
        raise InputError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}")


def dtype_of(classifier: Classifier) -> str:
    """The dtype of a module's weights, such as "float32"; "" for a function, and for a module without any.

    >>> dtype_of(nn.Linear(2, 2).half())
    'float16'
    """
    original = getattr(classifier, "original", classifier)  # a prepared model is its original
    parameters = original.parameters() if isinstance(original, nn.Module) else ()
    found = (str(one.dtype).removeprefix("torch.") for one in parameters if one.is_floating_point())
    return next(found, "")
