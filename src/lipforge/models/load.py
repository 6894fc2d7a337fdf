"""Any model by name: bundled, own architecture, RobustBench, timm, torchvision, or the user's own function."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from lipforge.errors import InputError, WeightsError
from lipforge.models.architectures import EXAMPLES, build_architecture, is_architecture, parse_architecture
from lipforge.models.cards import bundled_names, load_bundled, read_card
from lipforge.models.functions import build_from_function
from lipforge.models.names import suggest
from lipforge.models.packages import timm_model, timm_names, torchvision_model, torchvision_names
from lipforge.models.robustbench import robustbench_entries, robustbench_model
from lipforge.models.weights import find_weights, load_weights_

Kind = Literal["bundled", "architecture", "robustbench", "timm", "torchvision"]

FORMS = (
    "a bundled name, an architecture (resnet20, wrn-28-10:classes=100), robustbench:dataset/threat/name, timm:name, "
    "torchvision:name, package.module:function or path/to/file.py:function"
)


def load_model(
    spec: str,
    weights: str | Path | None = None,
    *,
    weights_dir: str | Path | None = None,
    pretrained: bool = True,
    classes: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """The model that `spec` names, in eval mode: images (N, C, H, W) in [0, 1] to logits (N, K).

    `weights` is a local file and wins over everything else; "file.pt#ema" names one of several state dicts in it.
    Otherwise `weights_dir` is searched for the file's usual name, then the package's own download is tried.
    `pretrained=False` gives random weights that depend on `seed` only. A function of the user decides about its
    own weights; `weights`, if given, are put over them.
    """
    if weights is not None and not pretrained:
        raise InputError(f"weights={str(weights)!r} and pretrained=False (--no-weights) exclude each other")
    if weights is not None and not str(weights):
        raise InputError("weights must name a checkpoint file, got an empty text; leave it out for the model's own")
    if classes is not None and classes < 1:
        raise InputError(f"classes must be at least 1, got {classes}")
    # Constructors draw from the global generator; it is put back, so that loading changes no one else's numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _load(spec, weights, weights_dir, pretrained, classes)
    return model.eval()


def list_models(kinds: Sequence[Kind] = ("bundled", "architecture")) -> dict[str, list[str]]:
    """Names that `load_model` takes, by kind; other packages are imported only if asked for.

    >>> "resnet20" in list_models()["architecture"]
    True
    """
    return {kind: _names(kind) for kind in kinds}


def _load(
    spec: str, weights: str | Path | None, weights_dir: str | Path | None, pretrained: bool, classes: int | None
) -> nn.Module:
    scheme, _, name = spec.partition(":")
    if scheme == "robustbench":
        return robustbench_model(name, weights, weights_dir, pretrained=pretrained, classes=classes)
    if scheme in ("timm", "torchvision"):
        build = timm_model if scheme == "timm" else torchvision_model
        return build(name, weights, weights_dir, pretrained=pretrained, classes=classes)
    if spec in bundled_names():
        model = _bundled(spec, pretrained and weights is None, classes)
    elif is_architecture(spec):
        return _architecture(spec, weights, weights_dir, pretrained, classes)
    elif name and "=" not in name:
        model = build_from_function(spec, classes)
    else:
        known = [*bundled_names(), *EXAMPLES]
        raise InputError(f"no model {spec!r}: expected {FORMS}{suggest(scheme, known)}")
    if weights_dir is not None:
        raise InputError(f"weights_dir (--weights-dir) does not apply to {spec!r}; give a file (--weights)")
    if weights is not None:
        load_weights_(model, weights)
    return model


def _bundled(name: str, pretrained: bool, classes: int | None) -> nn.Module:
    found = read_card(name).arguments.get("classes", 10)
    if classes not in (None, found):
        raise InputError(f"the bundled model {name!r} has {found} classes, not {classes}")
    return load_bundled(name, pretrained=pretrained)


def _architecture(
    spec: str, weights: str | Path | None, weights_dir: str | Path | None, pretrained: bool, classes: int | None
) -> nn.Module:
    name, arguments = parse_architecture(spec)
    if classes is not None and arguments.setdefault("classes", classes) != classes:
        raise InputError(f"{spec!r} and classes={classes} contradict each other")
    model = build_architecture(name, arguments)
    if pretrained and weights is None:
        weights = find_weights(weights_dir, [f"{name}{suffix}" for suffix in (".safetensors", ".pt", ".pth")])
        if weights is None:
            raise WeightsError(
                f"{name} is an architecture without weights of its own{f' in {weights_dir}' if weights_dir else ''}: "
                "give a file (--weights) or take random weights (--no-weights, pretrained=False)"
            )
    if weights is not None:
        load_weights_(model, weights)
    return model


def _names(kind: str) -> list[str]:
    match kind:
        case "bundled":
            return bundled_names()
        case "architecture":
            return list(EXAMPLES)
        case "robustbench":
            return [f"robustbench:{name}" for name in robustbench_entries()]
        case "timm":
            return [f"timm:{name}" for name in timm_names()]
        case "torchvision":
            return [f"torchvision:{name}" for name in torchvision_names()]
    raise InputError(f"no kind of model {kind!r}; there are bundled, architecture, robustbench, timm and torchvision")
