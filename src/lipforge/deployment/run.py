"""A model with all that lipforge added to it as one file, checked beside the model before it is written."""

import hashlib
import json
import time
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from lipforge.batching import ImageSource, peek
from lipforge.deployment.formats import (
    OPSET,
    OPSETS,
    Encode,
    Format,
    Metadata,
    onnx_encoder,
    pt2_encoder,
    safetensors_encoder,
)
from lipforge.deployment.fused import Fused
from lipforge.deployment.loading import classifier_in
from lipforge.deployment.parity import compare
from lipforge.deployment.programs import fused_program
from lipforge.errors import InputError, import_extra
from lipforge.forge import Recipe, forged, plain, recipe_of
from lipforge.forge.insert import is_changed
from lipforge.forge.recipe import weights_digest
from lipforge.records import lipforge_version, to_builtins, write_whole
from lipforge.results import ExportResult, Parity

BATCH_SIZE = 32


def export(
    model: nn.Module,
    path: str | Path,
    *,
    images: ImageSource,
    format: Format | None = None,
    opset: int | None = None,
    check: bool = True,
    model_name: str = "",
    batch_size: int = BATCH_SIZE,
    show_progress: bool | None = None,
) -> ExportResult:
    """Write `model` with forged functions, affine parts, head and TTA to one file: images in [0, 1] to logits.

    The `format` is "onnx", "pt2" (torch.export) or "safetensors" (the weights, and the recipe as metadata); without it
    the suffix of `path` decides. The file is first run on all `images` beside the model, and written only if classes
    are equal and logits within 1e-4; `check=False` writes it unchecked, and the file says so. A Step mask
    behind a ReLU becomes one threshold with it, and channels that only zero weights read are removed.
    """
    started = time.perf_counter()
    kind = _checked_format(Path(path), format, opset)
    if kind == "onnx" and check:
        import_extra("onnxruntime", "onnx")  # before the work, not after it
    opset = (opset or OPSET) if kind == "onnx" else None
    _check_precision(model)
    image, images = peek(images, batch_size)
    recipe = recipe_of(model) if is_changed(model) else None
    view = (plain(model) if recipe is None else forged(model)).cpu()
    encode, fused = _encoder(kind, view, image.cpu().float(), opset)
    about, parity = _metadata(model, recipe, model_name), None
    if check:
        run = classifier_in(encode({**about, "checked": "false"}), kind, str(path), view)
        parity = compare(view, run, images, batch_size=batch_size, show_progress=show_progress)
        about["check"] = json.dumps(vars(parity))
    content = encode({**about, "checked": json.dumps(check)})
    write_whole(path, content)
    seconds = time.perf_counter() - started
    return _result(path, kind, content, recipe, fused, parity, (model_name, opset, seconds))


def _check_precision(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise InputError(
                f"export writes models in float32, but '{name}' is {tensor.dtype}; call model.float() first"
            )


def _result(
    path: str | Path,
    kind: Format,
    content: bytes,
    recipe: Recipe | None,
    fused: Fused,
    parity: Parity | None,
    asked: tuple[str, int | None, float],
) -> ExportResult:
    model_name, opset, seconds = asked
    return ExportResult(
        path=str(path),
        file_format=kind,
        size=len(content),
        digest=hashlib.sha256(content).hexdigest(),
        model_name=model_name,
        recipe=None if recipe is None else recipe.digest,
        mask=None if recipe is None or not recipe.sites else str(recipe.mask),
        sites=0 if recipe is None else len(recipe.sites),
        tta=None if recipe is None or recipe.tta is None else str(recipe.tta),
        opset=opset,
        masks_fused=fused.masks,
        channels_removed=fused.channels,
        parity=parity,
        seconds=round(seconds, 3),
    )


def _checked_format(path: Path, format: str | None, opset: int | None) -> Format:
    """The format that is asked for, by name or by the suffix of the file, before any work is done."""
    known = get_args(Format)
    found = path.suffix.removeprefix(".") if format is None else format
    if found not in known:
        raise InputError(f"format must be one of {', '.join(known)}, by name or by the file's suffix, got {found!r}")
    if path.suffix != f".{found}":
        raise InputError(f"a file in the format {found} must end in .{found}, got {path.name!r}")
    if opset is not None and found != "onnx":
        raise InputError(f"opset is about ONNX, not about {found}")
    if opset is not None and (type(opset) is not int or not OPSETS[0] <= opset <= OPSETS[1]):
        raise InputError(f"opset must be a whole number in {OPSETS[0]}..{OPSETS[1]}, got {opset!r}")
    return found  # type: ignore[return-value]  # one of the names, as was checked


def _encoder(kind: Format, view: nn.Module, image: Tensor, opset: int | None) -> tuple[Encode, Fused]:
    if kind == "safetensors":
        return safetensors_encoder(plain(view)), Fused()
    program, fused = fused_program(view, image)
    return pt2_encoder(program) if kind == "pt2" else onnx_encoder(program, opset), fused


def _metadata(model: nn.Module, recipe: Recipe | None, model_name: str) -> Metadata:
    """What a file says of itself: texts, numbers and objects as JSON."""
    about = {"lipforge": lipforge_version(), "model": model_name, "weights": weights_digest(model)}
    if recipe is None:
        return about
    tta = {} if recipe.tta is None else {"tta": str(recipe.tta)}
    mask = {"mask": str(recipe.mask)} if recipe.sites else {}
    return {**about, **mask, **tta, "recipe_digest": recipe.digest, "recipe": _as_json(recipe)}


def _as_json(recipe: Recipe) -> str:
    return json.dumps(to_builtins(recipe.to_dict()), allow_nan=False)
