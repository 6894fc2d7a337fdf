"""The published parameters of the 15 standard corruptions at severities 1 to 5 (Hendrycks and Dietterich 2019)."""

from collections.abc import Iterable, Sequence
from typing import Literal

from lipforge.errors import InputError, suggest

Parameters = Literal["cifar10-c", "imagenet-c"]

SEVERITIES = (1, 2, 3, 4, 5)

SMALL_SIDE = 64
"""Images whose shorter side has at most this many pixels get the parameters of CIFAR-10-C, larger ones ImageNet-C's."""

# One entry per severity: the arguments of the function of that name in effects.py.
_CIFAR10_C: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
}

_IMAGENET_C: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    "shot_noise": ((60,), (25,), (12,), (5,), (3,)),
    "impulse_noise": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    "elastic_transform": (
        (488, 170.8, 24.4),
        (488, 19.52, 48.8),
        (12.2, 2.44, 4.88),
        (17.08, 2.44, 4.88),
        (29.28, 2.44, 4.88),
    ),
    "pixelate": ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    "jpeg_compression": ((25,), (18,), (15,), (10,), (7,)),
}

SETTINGS: dict[Parameters, dict[str, tuple[tuple[float, ...], ...]]] = {
    "cifar10-c": _CIFAR10_C,
    "imagenet-c": _IMAGENET_C,
}

CORRUPTIONS = tuple(_CIFAR10_C)
"""The 15 corruptions in the order of the paper."""

DEPARTURES = {
    "frost": "textures are generated; the published ones are photographs",
}
"""Which of ours are not the published corruption, and why."""


def check_corruptions(names: Sequence[str] | None) -> tuple[str, ...]:
    """These corruptions, each known and named once, in the order of the paper; all of them for None."""
    if isinstance(names, str):
        names = [part.strip() for part in names.split(",")]
    names = CORRUPTIONS if names is None else names
    _check_list("corruptions", names, '["fog", "snow"]')
    for name in names:
        if name not in CORRUPTIONS:
            hint = suggest(str(name), CORRUPTIONS)
            raise InputError(f"corruptions must be among {', '.join(CORRUPTIONS)}, got {name!r}{hint}")
    if not names or len(set(names)) < len(names):
        raise InputError(f"corruptions must name at least one, each once, got {', '.join(names) or 'none'}")
    return tuple(name for name in CORRUPTIONS if name in names)


def check_severities(severities: Sequence[int] | None) -> tuple[int, ...]:
    """These severities, each of 1 to 5 and once, in rising order; all of them for None."""
    severities = SEVERITIES if severities is None else severities
    _check_list("severities", severities, "[1, 3, 5]")
    for severity in severities:
        if isinstance(severity, bool) or severity not in SEVERITIES:
            raise InputError(f"severities must be among 1, 2, 3, 4, 5, got {severity!r}")
    if not severities or len(set(severities)) < len(severities):
        raise InputError(f"severities must name at least one, each once, got {list(severities)}")
    return tuple(sorted(severities))


def _check_list(argument: str, values: object, example: str) -> None:
    if not isinstance(values, Iterable):
        raise InputError(f"{argument} must be a list such as {example}, got {values!r}")


def parameters_for(height: int, width: int) -> Parameters:
    """Whose published parameters images of this size get.

    >>> parameters_for(32, 32), parameters_for(224, 224)
    ('cifar10-c', 'imagenet-c')
    """
    return "cifar10-c" if min(height, width) <= SMALL_SIDE else "imagenet-c"
