"""The types that every part of lipforge shares."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

from lipforge.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and the command line reads a Threat before it needs torch
    from torch import Tensor

Classifier = Callable[["Tensor"], "Tensor"]  # images (N, C, H, W) in [0, 1] to logits (N, K)

Norm = Literal["linf", "l2", "l1"]


@dataclass(frozen=True)
class Threat:
    """All perturbations of norm at most eps that keep the image in [0, 1].

    `eps` may be given as a fraction; the spelling is kept for people, the value for the arithmetic.

    >>> threat = Threat("linf", "8/255")
    >>> round(threat.eps, 6), str(threat)
    (0.031373, 'linf 8/255')
    """

    norm: Norm
    eps: float
    spelling: str = ""

    def __init__(self, norm: Norm, eps: float | str) -> None:
        known = norm.lower() if isinstance(norm, str) else norm  # AutoAttack and RobustBench write Linf and L2
        if known not in get_args(Norm):
            raise InputError(f"norm must be one of {', '.join(get_args(Norm))}, got {norm!r}")
        value = parse_number(eps, name="eps")
        if not value > 0:
            raise InputError(f"eps must be above 0, got {eps!r}; for clean accuracy use no attack at all")
        if known == "linf" and value > 1:
            raise InputError(f"eps must be at most 1 for linf, as images lie in [0, 1], got {eps!r}; is it {eps}/255?")
        object.__setattr__(self, "norm", known)
        object.__setattr__(self, "eps", value)
        object.__setattr__(self, "spelling", eps.strip() if isinstance(eps, str) else f"{value:g}")

    def __str__(self) -> str:
        return f"{self.norm} {self.spelling}"


def check_threat(threat: object) -> None:
    """Raise unless this is a Threat, not a pair or a text with the same content."""
    if not isinstance(threat, Threat):
        raise InputError(f'threat must be a Threat such as Threat("linf", "8/255"), got {reprlib.repr(threat)}')


def parse_number(text: float | str, *, name: str) -> float:
    """A finite number from a float, a decimal, a fraction or a power such as "2^-7".

    >>> [parse_number(text, name="eps") for text in ("8/255", "0.5/255", "2^-7")] == [8 / 255, 0.5 / 255, 2**-7]
    True
    """
    try:
        if isinstance(text, str) and "^" in text.replace("**", "^"):
            base, exponent = text.replace("**", "^").split("^")
            value = float(pow(float(base), float(exponent)))
        else:
            value = float(_fraction(text)) if isinstance(text, str) else float(text)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise InputError(f"{name} must be a number such as 0.03, 8/255 or 2^-7, got {text!r}") from None
    if not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {text!r}")
    return value


def _fraction(text: str) -> Fraction:
    above, _, below = text.partition("/")
    return Fraction(above.strip()) / Fraction(below.strip() or ("1" if "/" not in text else ""))
