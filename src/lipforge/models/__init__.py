"""Models that take images in [0, 1] and return logits: own architectures, and those of others by name."""

from lipforge.models.normalize import Normalize
from lipforge.models.resnet import preact_resnet18, resnet
from lipforge.models.vit import vit
from lipforge.models.wide_resnet import wide_resnet

__all__ = ["Normalize", "preact_resnet18", "resnet", "vit", "wide_resnet"]
