"""What certification found: one claim per image, and the curve that they make."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lipforge.certify.binomial import interval
from lipforge.errors import InputError


@dataclass(frozen=True)
class CertifiedImage:
    """What can be claimed of one image: inside the open l2 ball of `radius` the smoothed class is `prediction`.

    `prediction` is None where the smoothed classifier abstains. `selected` is the class that the first n0 draws chose;
    `hits` of `draws` further draws fell into it, so its probability is at least `p_lower`, except with probability
    alpha.
    """

    index: int
    label: int
    prediction: int | None
    radius: float
    p_lower: float
    selected: int
    hits: int
    draws: int

    def certified(self, radius: float) -> bool:
        """Whether the image keeps its true class under every perturbation of l2 norm below `radius`."""
        return self.prediction == self.label and self.radius >= radius


@dataclass(frozen=True)
class CurvePoint:
    """Certified accuracy at one radius: how many images of all, their share and its 95 % interval."""

    radius: float
    certified: int
    accuracy: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class CertifyResult:
    """Certified accuracy of one smoothed classifier.

    Each image's claim is wrong with probability at most alpha, so of `count` claims at most alpha * count are expected
    to be. The intervals of the curve are about the choice of images, at 95 %.
    """

    label: str
    model: str
    data: str
    sigma: float
    n0: int
    n: int
    alpha: float
    seed: int
    only_correct: bool
    count: int
    abstained: int
    forwards: int
    seconds: float
    curve: tuple[CurvePoint, ...]
    images: tuple[CertifiedImage, ...]
    model_digest: str = ""
    data_digest: str = ""

    def certified(self, radius: float) -> list[bool]:
        """For each image, whether it is certified at `radius`."""
        return [image.certified(radius) for image in self.images]

    def at(self, radius: float) -> CurvePoint:
        """Certified accuracy at any radius."""
        return point(self.images, radius)

    def __str__(self) -> str:
        lines = [f"{self.label}: sigma {self.sigma:g}, n {self.n}, alpha {self.alpha:g}, {self.abstained} abstained"]
        for here in self.curve:
            low, high = (100 * bound for bound in here.interval)
            share = f"{100 * here.accuracy:.2f} [{low:.2f}, {high:.2f}]"
            lines.append(f"  l2 {here.radius:.2f}  {share} {here.certified} of {self.count}")
        return "\n".join(lines)


@dataclass(frozen=True)
class About:
    """What a result is about: the part of it that no shard knows."""

    label: str
    model: str
    data: str
    model_digest: str
    data_digest: str
    sigma: float
    n0: int
    n: int
    alpha: float
    seed: int
    only_correct: bool


def gather(about: About, shards: Sequence[Mapping[str, Any]], radii: Sequence[float]) -> CertifyResult:
    """The result that the shards of a certification make up."""
    images = tuple(CertifiedImage(**row) for shard in shards for row in shard["images"])
    return CertifyResult(
        **vars(about),
        count=len(images),
        abstained=sum(image.prediction is None for image in images),
        forwards=sum(shard["forwards"] for shard in shards),
        seconds=sum(shard["seconds"] for shard in shards),
        curve=tuple(point(images, radius) for radius in radii),
        images=images,
    )


def point(images: Sequence[CertifiedImage], radius: float) -> CurvePoint:
    """Certified accuracy of these images at one radius."""
    certified = sum(image.certified(radius) for image in images)
    return CurvePoint(radius, certified, certified / len(images), interval(certified, len(images)))


def default_radii(sigma: float) -> tuple[float, ...]:
    """Sigma times 0, 0.5, ... 3.5: sigma 0.25 gives 0, 0.125, ... 0.875; n = 100,000 cannot certify beyond 3.81 sigma.

    >>> default_radii(0.5)
    (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
    """
    return tuple(sigma * step / 2 for step in range(8))


def check_radii(radii: Sequence[float]) -> tuple[float, ...]:
    """The radii as given, or an error unless they are finite and not negative."""
    for radius in radii:
        if not (math.isfinite(radius) and radius >= 0):
            raise InputError(f"radii must be finite and not negative, got {radius}")
    return tuple(radii)
