"""The slope of a whole network at an image."""

import torch
from torch import Tensor

from lipforge.types import Classifier

MOST_CLASSES = 100


def jacobian_norms(classifier: Classifier, images: Tensor) -> Tensor | None:
    """The largest singular value (N,) of d logits / d image at each image, exactly; None beyond 100 classes.

    J J^T is as small as the number of classes, and its rows cost one backward pass per class.
    """
    x = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = classifier(x)
        classes = logits.shape[1]
        if classes > MOST_CLASSES:
            return None
        rows = [
            torch.autograd.grad(logits[:, k].sum(), x, retain_graph=k + 1 < classes)[0].flatten(1)
            for k in range(classes)
        ]
    jacobian = torch.stack(rows, dim=1).double()
    eigenvalues: Tensor = torch.linalg.eigvalsh(jacobian @ jacobian.mT)
    return eigenvalues[:, -1].clamp(min=0).sqrt()
