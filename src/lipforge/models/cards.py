"""Models whose weights come with lipforge: NAME.safetensors beside a card NAME.json.

The card says how to build the model and how to know its weights:
{"architecture": "resnet20", "arguments": {"width": 32, "classes": 10}, "sha256": "..."}; whatever else it
holds (data, training, measured accuracies) is for people. Adding the two files is all it takes to bundle a model.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lipforge.errors import InputError, WeightsError
from lipforge.models.architectures import build_architecture
from lipforge.models.names import suggest
from lipforge.models.weights import load_weights_
from lipforge.records import read_json

BUNDLED = Path(__file__).parent / "bundled"


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
    """The card of a bundled model."""
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
        check_sha256(path, card.sha256)
        load_weights_(model, path)
    return model


def check_sha256(path: Path, expected: str) -> None:
    """Raise unless the file has this checksum."""
    if not path.is_file():
        raise WeightsError(f"the bundled weights {path} are missing: install lipforge again")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise WeightsError(f"{path} has SHA-256 {actual}, its card says {expected}: the file was changed or damaged")
