"""Models that take images in [0, 1] and return logits: own architectures, and those of others by name."""

from lipforge.models.load import list_models, load_model
from lipforge.models.normalize import Normalize
from lipforge.models.resnet import preact_resnet18, resnet
from lipforge.models.vit import vit
from lipforge.models.weights import load_weights_
from lipforge.models.wide_resnet import wide_resnet
from lipforge.models.zoo import carried_masks

__all__ = [
    "Normalize",
    "carried_masks",
    "list_models",
    "load_model",
    "load_weights_",
    "preact_resnet18",
    "resnet",
    "vit",
    "wide_resnet",
]
