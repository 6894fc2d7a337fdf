"""Own architectures by name, with arguments: `resnet20`, `wrn-28-10:activation=silu,classes=100`."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from lipforge.errors import InputError
from lipforge.models.names import suggest
from lipforge.models.resnet import preact_resnet18, resnet
from lipforge.models.vit import vit
from lipforge.models.wide_resnet import wide_resnet

Builder = Callable[..., nn.Module]

# A pattern's named groups are arguments of the builder; the fixed ones are given beside it.
_FAMILIES: list[tuple[str, Builder, dict[str, Any]]] = [
    (r"resnet-?(?P<depth>\d+)", resnet, {}),
    (r"preact-?resnet-?18", preact_resnet18, {}),
    (r"(wrn|wide-?resnet)-(?P<depth>\d+)-(?P<width>\d+)", wide_resnet, {}),
    (r"vit", vit, {}),
    (r"vit-tiny", vit, {"dim": 192, "depth": 9, "heads": 3}),
    (r"vit-small", vit, {"dim": 384, "depth": 7, "heads": 6}),
]

EXAMPLES = ("resnet20", "resnet32", "resnet56", "preactresnet18", "wrn-28-10", "wrn-34-10", "vit-tiny", "vit-small")
"""Names that show each family; other depths and widths work too."""


def is_architecture(spec: str) -> bool:
    """Whether the name before the first colon is one of ours, and what follows it looks like arguments."""
    name, _, arguments = spec.partition(":")
    return _family(name) is not None and (not arguments or "=" in arguments)


def build_architecture(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """A freshly initialised model; `arguments` are those of its builder (classes, width, mean, ...).

    >>> build_architecture("resnet20", {"classes": 100}).linear.out_features
    100
    """
    family = _family(name)
    if family is None:
        raise InputError(f"no architecture {name!r}{suggest(name, EXAMPLES)}")
    builder, fixed = family
    _check_arguments(name, arguments, builder, fixed)
    return builder(**fixed, **arguments)


def parse_architecture(spec: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments in a spec such as "resnet20:width=32,shortcut=conv".

    >>> parse_architecture("resnet20:width=32,shortcut=conv")
    ('resnet20', {'width': 32, 'shortcut': 'conv'})
    """
    name, _, text = spec.partition(":")
    arguments: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value or key in arguments:
            raise InputError(f"arguments of {name!r} must read key=value,key=value with each key once, got {text!r}")
        arguments[key] = int(value) if re.fullmatch(r"\d+", value) else value
    return name, arguments


def _family(name: str) -> tuple[Builder, dict[str, Any]] | None:
    for pattern, builder, fixed in _FAMILIES:
        if match := re.fullmatch(pattern, name, flags=re.IGNORECASE):
            return builder, {**fixed, **{key: int(value) for key, value in match.groupdict().items()}}
    return None


def _check_arguments(name: str, arguments: Mapping[str, Any], builder: Builder, fixed: Mapping[str, Any]) -> None:
    known = [key for key in inspect.signature(builder).parameters if key not in fixed]
    for key, value in arguments.items():
        if key not in known:
            raise InputError(f"{name!r} has no argument {key!r}; it takes {', '.join(known)}{suggest(key, known)}")
        default = inspect.signature(builder).parameters[key].default
        if isinstance(default, tuple) and isinstance(value, (str, int)):
            raise InputError(f"{key} of {name!r} cannot be given in a name: write a function and name that")
        if isinstance(default, int) and not (isinstance(value, int) and value > 0):
            raise InputError(f"{key} of {name!r} must be a whole number above 0, got {value!r}")
