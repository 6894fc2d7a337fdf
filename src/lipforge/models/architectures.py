"""Our own models by name: architectures with arguments, and bundled models, whose weights come with lipforge.

An architecture reads `resnet20` or `wrn-28-10:activation=silu,classes=100`. A bundled model is NAME.safetensors beside
a card NAME.json, {"architecture": "resnet20", "arguments": {"classes": 10}, "sha256": "...", what else is for people}.
"""

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lipforge.errors import InputError, WeightsError, suggest
from lipforge.models.networks import preact_resnet18, resnet, vit, wide_resnet
from lipforge.models.weights import load_weights_
from lipforge.records import read_json

Builder = Callable[..., nn.Module]
BUNDLED = Path(__file__).parent / "bundled"

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
    defaults = {key: taken.default for key, taken in inspect.signature(builder).parameters.items() if key not in fixed}
    for key, value in arguments.items():
        if key not in defaults:
            raise InputError(
                f"{name!r} has no argument {key!r}; it takes {', '.join(defaults)}{suggest(key, defaults)}"
            )
        if isinstance(defaults[key], tuple) and isinstance(value, (str, int)):
            raise InputError(f"{key} of {name!r} cannot be given in a name: write a function and name that")
        if isinstance(defaults[key], int) and not (isinstance(value, int) and value > 0):
            raise InputError(f"{key} of {name!r} must be a whole number above 0, got {value!r}")
    return builder(**fixed, **arguments)


def parse_architecture(spec: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments in a spec.

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


@dataclass(frozen=True)
class Card:
    """How to build a bundled model, the checksum of its weights, and everything else the card says."""

    name: str
    architecture: str
    arguments: dict[str, Any]
    sha256: str
    about: dict[str, Any]


def bundled_names(directory: Path = BUNDLED) -> list[str]:
    """The names of all bundled models, sorted."""
    return sorted(path.stem for path in directory.glob("*.json"))


def read_card(name: str, directory: Path = BUNDLED) -> Card:
    if name not in bundled_names(directory):
        raise InputError(f"no bundled model {name!r}{suggest(name, bundled_names(directory))}")
    content = read_json(directory / f"{name}.json")
    try:
        known = {key: content.pop(key) for key in ("architecture", "arguments", "sha256")}
    except (KeyError, AttributeError, TypeError) as error:
        raise WeightsError(f"the card {name}.json lacks {error}; it needs architecture, arguments, sha256") from None
    return Card(name, **known, about=content)


def load_bundled(name: str, directory: Path = BUNDLED, *, pretrained: bool = True) -> nn.Module:
    """A bundled model; its weights are loaded only if their SHA-256 is the card's."""
    card = read_card(name, directory)
    model = build_architecture(card.architecture, card.arguments)
    if pretrained:
        path = directory / f"{name}.safetensors"
        if not path.is_file():
            raise WeightsError(f"the bundled weights {path} are missing: install lipforge again")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != card.sha256:
            raise WeightsError(f"{path} has SHA-256 {found}, its card says {card.sha256}: it was changed or damaged")
        load_weights_(model, path)
    return model


def _family(name: str) -> tuple[Builder, dict[str, Any]] | None:
    for pattern, builder, fixed in _FAMILIES:
        if match := re.fullmatch(pattern, name, flags=re.IGNORECASE):
            return builder, {**fixed, **{key: int(value) for key, value in match.groupdict().items()}}
    return None
