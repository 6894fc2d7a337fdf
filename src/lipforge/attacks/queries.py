"""Asking a model: every logit that an attack sees comes through here, checked."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipforge.batching import check_eval, check_images
from lipforge.errors import InputError, LipforgeError, ModelError, first_line, lacks_memory
from lipforge.memory import in_batches
from lipforge.outputs import logits_in
from lipforge.sources import is_whole
from lipforge.types import Classifier


@dataclass(frozen=True)
class Prepared:
    """A classifier with a folded copy: attacks search on `folded`, and only `original` decides who is broken.

    Called like any classifier, it is the original.
    """

    original: Classifier
    folded: Classifier

    def __call__(self, x: Tensor) -> Tensor:
        return self.original(x)


def checked_ids(model: Classifier, x: Tensor, y: Tensor, sample_ids: Tensor | Sequence[int] | None) -> Tensor:
    """The sample ids to use, after refusing whatever would make an attack's result meaningless."""
    original = model.original if isinstance(model, Prepared) else model
    if isinstance(original, nn.Module):
        check_eval(original)
    check_images(x)
    if y.shape != (len(x),) or not is_whole(y):
        raise InputError(f"labels must be integers (N,), one per image, got {y.dtype} {tuple(y.shape)} for {len(x)}")
    ids = torch.as_tensor(range(len(x)) if sample_ids is None else sample_ids, device=x.device)
    if ids.shape != (len(x),):
        raise InputError(f"sample_ids must be one per image, got {tuple(ids.shape)} for {len(x)} images")
    return ids


def logits_of(model: Classifier, x: Tensor, ids: Tensor | None = None, *, whole: bool = False) -> Tensor:
    """The model's logits (N, K), checked: one row per image, and finite; an error names the image by its id. Without
    gradients, images that do not fit into memory at once are asked about in smaller batches, unless someone watches
    the `whole` pass."""
    logits = logits_in(model(x), rows=len(x)) if whole or torch.is_grad_enabled() else forward(model, x)
    finite = logits.isfinite()
    if not finite.all():
        wrong = (~finite.all(dim=1)).nonzero().squeeze(1)
        named = list(dict.fromkeys((wrong if ids is None else ids[wrong]).tolist()))  # one may be there several times
        others = f" and {len(named) - 1} more of its batch" if len(named) > 1 else ""
        raise ModelError(f"the model returned NaN or infinite logits for image {named[0]}{others}")
    return logits


@torch.no_grad()
def forward(model: Classifier, x: Tensor) -> Tensor:
    """The model's logits (N, K) without gradients, in smaller batches where memory runs out. What the model itself
    raises, because its images should have another size, for example, is a `ModelError`."""

    def passed(rows: slice) -> Tensor:
        try:
            output = model(x[rows])
        except Exception as error:
            if isinstance(error, LipforgeError) or lacks_memory(error):
                raise
            about = f"{type(error).__name__}: {first_line(error)}"
            raise ModelError(f"the model fails on images of the shape {tuple(x.shape[1:])}: {about}") from error
        return logits_in(output, rows=rows.stop - rows.start)

    parts = in_batches(passed, x, "forward")
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def check_labels(y: Tensor, classes: int) -> None:
    """Raise unless every label is one of the model's classes."""
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < classes):
        raise InputError(
            f"labels must lie in [0, {classes}), the model's classes; got [{int(y.min())}, {int(y.max())}]"
        )


@torch.no_grad()
def is_misclassified(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """Which images (N,) the model does not put into the class `y`."""
    logits = logits_of(model, x)
    check_labels(y, logits.shape[1])
    return logits.argmax(dim=1) != y
