"""An exported file as a classifier, so that what is deployed is what is judged."""

import copy
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from lipforge.deployment.formats import Format, Metadata, read_onnx, read_pt2, read_safetensors
from lipforge.errors import ExportError, InputError, LipforgeError
from lipforge.forge import forged, plain, recipe_of
from lipforge.forge.insert import is_changed
from lipforge.forge.recipe import recipe_from_dict, weights_digest
from lipforge.outputs import logits_in

WEB_PAGE = re.compile(rb"\s*<(!doctype|html|head|\?xml)", re.IGNORECASE)


class Exported(nn.Module):
    """The classifier in a file: images (N, C, H, W) in [0, 1] to logits (N, K), in eval mode only.

    `digest` is the SHA-256 of the file, by which a run directory tells it from others; `metadata` is what it says of
    itself. An ONNX file has no gradient of its own: with a `source` the logits are still the file's, bit for bit, and
    the backward pass is the source's.
    """

    def __init__(
        self,
        run: Callable[[Tensor], Tensor],
        *,
        name: str,
        digest: str,
        metadata: Metadata,
        source: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.run, self.digest, self.metadata, self.source = run, digest, metadata, source
        self.path = Path(name)  # no text, which would be part of its identity: a file is the same in another folder
        self.training = False

    @property
    def name(self) -> str:
        """The file, as it was named."""
        return str(self.path)

    def forward(self, images: Tensor) -> Tensor:
        if self.source is None:
            return logits_in(self.run(images))
        logits: Tensor = _SourceGradient.apply(images, self.run, self.source)  # type: ignore[no-untyped-call]
        return logits

    def train(self, mode: bool = True) -> Self:
        """Do nothing for eval mode; a file cannot be trained."""
        if mode:
            raise InputError(f"{self.name} is an exported file, which cannot be trained; train the model it came from")
        return self

    def extra_repr(self) -> str:
        return f"sha256={self.digest}"


class _SourceGradient(torch.autograd.Function):
    """run(x), with the gradient of source(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor], source: nn.Module) -> Tensor:
        ctx.save_for_backward(x)
        ctx.source = source
        return run(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            logits = logits_in(ctx.source(point))
        return torch.autograd.grad(logits, point, gradients[0])[0], None, None


def load_exported(path: str | Path, source: nn.Module | None = None) -> Exported:
    """The classifier in a file of `lf.export`; nothing in the file is run.

    `source` is the model that the file was made from, with its recipe applied; one with other weights or another recipe
    is refused. A safetensors file needs it for its architecture, an ONNX file for attacks that follow gradients.
    """
    path = Path(path)
    kind = path.suffix.removeprefix(".")
    if kind not in get_args(Format):
        raise InputError(f"an exported file ends in .onnx, .pt2 or .safetensors, got {path.name!r}")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"no file {path}; lf.export (lipforge export) writes one") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if WEB_PAGE.match(content):
        raise ExportError(f"{path} is a web page, not a model: the download gave an error or a login page")
    return classifier_in(content, kind, str(path), source, check_source=True)  # type: ignore[arg-type]  # checked


def classifier_in(
    content: bytes, kind: Format, name: str, source: nn.Module | None = None, *, check_source: bool = False
) -> Exported:
    """The classifier in the bytes of a file; `name` is the file's in messages."""
    view: nn.Module | None = None
    run: Callable[[Tensor], Tensor]
    if kind == "safetensors":
        metadata, run = _weights_in(content, name, source)
    elif kind == "pt2":
        metadata, run = read_pt2(content, name)
    else:
        metadata, run = read_onnx(content, name)
        view = None if source is None else forged(source) if is_changed(source) else plain(source)
    if source is not None and check_source:
        _check_source(source, metadata, name, weights=kind != "safetensors")
    return Exported(run, name=name, digest=hashlib.sha256(content).hexdigest(), metadata=metadata, source=view)


def _weights_in(content: bytes, name: str, source: nn.Module | None) -> tuple[Metadata, nn.Module]:
    """A copy of `source` with the weights of a safetensors file, changed by the recipe in its metadata."""
    metadata, tensors = read_safetensors(content, name)
    if source is None:
        raise InputError(f"{name} holds weights only; give a model of the same architecture as source=")
    model = copy.deepcopy(plain(source))
    try:
        model.load_state_dict(tensors)
        if "recipe" in metadata:
            recipe_from_dict(json.loads(metadata["recipe"])).apply_(model)
    except (RuntimeError, ValueError, KeyError, TypeError, LipforgeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"{name} does not fit the source, or has a damaged recipe: {reason}") from None
    return metadata, model


def _check_source(source: nn.Module, metadata: Metadata, name: str, *, weights: bool) -> None:
    """Raise if the file was made from another model, or from the same with another recipe."""
    if weights and metadata.get("weights") != weights_digest(source):
        raise InputError(f"source must be the model that {name} was made from; its weights differ")
    own = recipe_of(source).digest if is_changed(source) else None
    if (weights or own is not None) and metadata.get("recipe_digest") != own:
        raise InputError(f"source must have the recipe of {name} applied; it has {'another' if own else 'none'}")
