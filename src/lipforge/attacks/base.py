"""What an attack is, and the checks and the gradient that all of them share."""

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from lipforge.attacks.losses import Loss
from lipforge.batching import check_eval, check_images
from lipforge.errors import InputError, ModelError
from lipforge.types import Classifier, Threat


class Attack(Protocol):
    """A frozen dataclass that turns images into adversarial images; the norm and eps come with the call.

    `sample_ids` (N,) number the images in their data set: random numbers depend on (seed, attack, id) only, so they
    are the same in any batch. Without them the images are numbered 0 .. N - 1.
    """

    name: ClassVar[str]

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat,
        seed: int = 0,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Images (N, C, H, W) inside the threat, in the order of `x`."""
        ...


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


def input_gradient(model: Classifier, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """The gradient of the loss with respect to the images, and the logits; parameters get no gradient."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_of(model, x, y)
        (gradient,) = torch.autograd.grad(loss(logits, y).sum(), x)
    return gradient, logits.detach()


@torch.no_grad()
def is_fooled(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """Which images (N,) the model does not put into the class `y`."""
    return logits_of(model, x, y).argmax(dim=1) != y
