"""Models of timm and torchvision, wrapped so that they take images in [0, 1]."""

import contextlib
import importlib
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipforge.errors import InputError, LipforgeError, ModelError, WeightsError, missing_extra
from lipforge.models.names import suggest
from lipforge.models.normalize import Normalize
from lipforge.models.weights import Adapt, find_weights, load_weights_

_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")


def import_package(name: str) -> Any:
    """An optional package, or the error that says how to get one that works."""
    try:
        with quiet():
            return importlib.import_module(name)
    except ImportError as error:
        raise _missing(name, error) from error
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        raise ModelError(
            f"{name} cannot be imported: the installed torchvision was built for another torch than "
            f"{torch.__version__} ({error}); install the pair that belongs together, from the same index"
        ) from error


def timm_model(
    name: str,
    weights: str | Path | None = None,
    weights_dir: str | Path | None = None,
    *,
    pretrained: bool = True,
    classes: int | None = None,
) -> nn.Module:
    """A timm model behind the normalisation of its own configuration."""
    timm = import_package("timm")
    if name.split(".")[0] not in timm_names():
        raise InputError(f"timm has no model {name!r}{suggest(name.split('.')[0], timm_names())}")
    local = weights or (find_weights(weights_dir, [f"{name}{suffix}" for suffix in _SUFFIXES]) if pretrained else None)
    online = pretrained and local is None
    if online:
        config = timm.get_pretrained_cfg(name)
        _check_pretrained(f"timm:{name}", bool(config.hf_hub_id or config.url), classes, config.num_classes)
    arguments = {} if classes is None else {"num_classes": classes}
    with quiet(), downloading(f"timm:{name}") if online else contextlib.nullcontext():
        network = timm.create_model(name, pretrained=online, **arguments)
    model = normalized(network, network.pretrained_cfg["mean"], network.pretrained_cfg["std"])
    if local is not None:
        load_weights_(model, local, adapt=layout_filter(network))
    return model


def torchvision_model(
    name: str,
    weights: str | Path | None = None,
    weights_dir: str | Path | None = None,
    *,
    pretrained: bool = True,
    classes: int | None = None,
) -> nn.Module:
    """A torchvision classifier behind the normalisation of its default weights."""
    models = import_package("torchvision").models
    if name not in torchvision_names():
        raise InputError(f"torchvision has no classifier {name!r}{suggest(name, torchvision_names())}")
    default = models.get_model_weights(name).DEFAULT
    file = default.url.rsplit("/", 1)[-1]
    files = [file, *(f"{name}{suffix}" for suffix in _SUFFIXES)]
    local = weights or (find_weights(weights_dir, files) if pretrained else None)
    if pretrained and local is None:
        _check_pretrained(f"torchvision:{name}", True, classes, len(default.meta["categories"]))
        local = download(default.url, Path(torch.hub.get_dir()) / "checkpoints" / file)
    arguments = {} if classes is None else {"num_classes": classes}
    with quiet():
        network = models.get_model(name, weights=None, **arguments)
    # torchvision sets this for its own Inception and GoogLeNet weights, which expect another normalisation.
    if local is not None and Path(local).name == file and hasattr(network, "transform_input"):
        network.transform_input = True
    transform = default.transforms()
    model = normalized(network, transform.mean, transform.std)
    if local is not None:
        load_weights_(model, local)
    return model


def timm_names() -> list[str]:
    """timm's own models. Other packages register theirs with it too, normalisation inside: ours would be a second."""
    timm = import_package("timm")
    names: list[str] = timm.list_models()
    return [name for name in names if timm.models.model_entrypoint(name).__module__.startswith("timm.")]


def torchvision_names() -> list[str]:
    """torchvision's classifiers."""
    models = import_package("torchvision").models
    names: list[str] = models.list_models(module=models)
    return names


def normalized(network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Sequential:
    """`network` behind its normalisation: the pair takes images in [0, 1]."""
    return nn.Sequential(OrderedDict(normalize=Normalize(mean, std), model=network))


def layout_filter(network: nn.Module) -> Adapt | None:
    """timm's own translation of older layouts of this architecture, where it has one."""
    translate = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    return None if translate is None else lambda state: translate(state, network)


def download(url: str, path: Path) -> Path:
    """The file at `path`, downloaded first if it is not there; a name that carries a hash is checked."""
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    expected = torch.hub.HASH_REGEX.search(path.name)
    with downloading(path.name, f"get {url} and name it with --weights, or put it into --weights-dir"):
        torch.hub.download_url_to_file(url, str(path), expected[1] if expected else None, progress=sys.stderr.isatty())
    return path


@contextlib.contextmanager
def downloading(what: str, way_out: str = "download the file elsewhere and name it with --weights") -> Iterator[None]:
    """Turn whatever a failed download raises into one error with a way out."""
    try:
        yield
    except LipforgeError:
        raise
    except Exception as error:  # requests, urllib, hub clients and sockets each have their own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"the weights of {what} could not be downloaded ({reason}); {way_out}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Other packages' deprecation warnings silenced, and their prints sent to stderr: stdout is for results."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


def _check_pretrained(spec: str, has_weights: bool, classes: int | None, found: int) -> None:
    if not has_weights:
        raise WeightsError(f"{spec} has no pretrained weights; give a file (--weights) or take none (--no-weights)")
    if classes is not None and classes != found:
        raise WeightsError(
            f"the pretrained weights of {spec} have {found} classes, not {classes}; give a file with {classes} "
            "(--weights) or take random weights (--no-weights)"
        )


def _missing(name: str, error: ImportError) -> LipforgeError:
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error.name or name, "zoo")
    return ModelError(f"{name} cannot be imported: {error}")
