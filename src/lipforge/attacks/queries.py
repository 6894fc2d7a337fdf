"""Asking a model: every logit that an attack sees comes through here, checked."""

import torch
from torch import Tensor, nn

from lipforge.batching import check_eval, check_images
from lipforge.errors import InputError, ModelError
from lipforge.types import Classifier


def checked_ids(model: Classifier, x: Tensor, y: Tensor, sample_ids: Tensor | None) -> Tensor:
    """The sample ids to use, after refusing whatever would make an attack's result meaningless."""
    if isinstance(model, nn.Module):
        check_eval(model)
    check_images(x)
    if y.shape != (len(x),) or y.is_floating_point():
        raise InputError(f"labels must be integers (N,), one per image, got {y.dtype} {tuple(y.shape)} for {len(x)}")
    ids = torch.arange(len(x), device=x.device) if sample_ids is None else sample_ids.to(x.device)
    if ids.shape != (len(x),):
        raise InputError(f"sample_ids must be one per image, got {tuple(ids.shape)} for {len(x)} images")
    return ids


def logits_of(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """The model's logits (N, K), checked: finite, one row per image, and with a column for every label."""
    logits = model(x)
    if logits.ndim != 2 or len(logits) != len(x):
        raise ModelError(f"the model must return logits ({len(x)}, K), got {tuple(logits.shape)}")
    finite = logits.isfinite().all(dim=1)
    if not finite.all():
        wrong = int((~finite).nonzero()[0])
        raise ModelError(f"the model returned NaN or infinite logits for image {wrong} of the batch")
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < logits.shape[1]):
        raise InputError(
            f"labels must lie in [0, {logits.shape[1]}), the model's classes; got [{int(y.min())}, {int(y.max())}]"
        )
    return logits


@torch.no_grad()
def is_fooled(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """Which images (N,) the model does not put into the class `y`."""
    return logits_of(model, x, y).argmax(dim=1) != y
