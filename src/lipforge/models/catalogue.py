"""Which models there are by name, with what is known of them, and which packages bring more."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from lipforge.errors import InputError
from lipforge.models.architectures import BUNDLED, read_card
from lipforge.models.load import Kind, list_models

ZOOS: tuple[Kind, ...] = ("robustbench", "timm", "torchvision")


@dataclass(frozen=True)
class Known:
    """A model that `load_model` takes by this name; of a bundled one what its card says, accuracies as shares of
    `images` test images of `data`, robust accuracy under `attack` within `threat`, and the bytes of its weights."""

    name: str
    source: Literal["bundled", "architecture", "robustbench", "timm", "torchvision"]
    architecture: str | None = None
    classes: int | None = None
    parameters: int | None = None
    bytes: int | None = None
    data: str | None = None
    images: int | None = None
    clean_accuracy: float | None = None
    robust_accuracy: float | None = None
    attack: str | None = None
    threat: str | None = None


@dataclass(frozen=True)
class Zoo:
    """A package of models: its version, or None if it is not installed, and how to get it."""

    name: str
    version: str | None
    install: str = "pip install 'lipforge[zoo]'"


def known_models(glob: str = "*") -> list[Known]:
    """Bundled models and examples of architectures whose names match `glob`, upper and lower case alike. A glob that
    begins with the name of a zoo, such as timm:resnet*, lists that zoo, which must be installed."""
    zoo = glob.partition(":")[0]
    kinds: tuple[Kind, ...] = tuple(kind for kind in ZOOS if kind == zoo) or ("bundled", "architecture")
    names = [(kind, name) for kind, listed in list_models(kinds).items() for name in listed]
    found = [(kind, name) for kind, name in names if fnmatchcase(name.lower(), glob.lower())]
    if not found:
        raise InputError(
            f"no model matches {glob!r}; `lipforge models` lists all, and 'timm:*' and such list those of a zoo"
        )
    return [_bundled(name) if kind == "bundled" else Known(name, kind) for kind, name in found]  # type: ignore[arg-type]


def zoos() -> list[Zoo]:
    """The packages that bring further models; none is imported."""
    return [Zoo(name, _version(name)) for name in ZOOS]


def _bundled(name: str) -> Known:
    card = read_card(name)
    accuracy: dict[str, Any] = card.about.get("accuracy", {})
    clean = accuracy.get("clean", {})
    robust: dict[str, Any] = next(
        (found for found in accuracy.values() if isinstance(found, dict) and "attack" in found), {}
    )
    return Known(
        name,
        "bundled",
        architecture=card.architecture,
        classes=card.arguments.get("classes"),
        parameters=card.about.get("parameters"),
        bytes=(BUNDLED / f"{name}.safetensors").stat().st_size,
        data=card.about.get("data", {}).get("name"),
        images=clean.get("count"),
        clean_accuracy=clean.get("share"),
        robust_accuracy=robust.get("share"),
        attack=robust.get("attack"),
        threat=robust.get("threat"),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
