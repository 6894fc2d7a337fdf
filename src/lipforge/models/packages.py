"""Models of timm and torchvision, wrapped so that they take images in [0, 1]."""

import contextlib
import importlib
import importlib.util
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipforge.errors import InputError, LipforgeError, ModelError, WeightsError, first_line, missing_extra, suggest
from lipforge.models.networks import Normalize
from lipforge.models.weights import Adapt, Wanted, load_weights_
from lipforge.progress import is_silent

_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
# Operators live as long as the library that declared them.
_declared: list[Any] = []


def import_package(name: str) -> Any:
    """An optional package, or the error that says how to get one that works."""
    try:
        with quiet():
            _import_torchvision()
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or name, "zoo") from error
    except ImportError as error:
        raise ModelError(f"{name} cannot be imported: {error}") from error
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        raise ModelError(
            f"{name} cannot be imported: the installed torchvision was built for another torch than "
            f"{torch.__version__} ({error}); install versions that belong together, from the same index"
        ) from error


def timm_model(name: str, wanted: Wanted) -> nn.Module:
    """A timm model behind the normalisation of its own configuration."""
    timm = import_package("timm")
    if name.split(".")[0] not in timm_names():
        raise InputError(f"timm has no model {name!r}{suggest(name.split('.')[0], timm_names())}")
    local = wanted.local([f"{name}{suffix}" for suffix in _SUFFIXES])
    online = wanted.pretrained and local is None
    if online:
        config = timm.get_pretrained_cfg(name)
        _check_pretrained(f"timm:{name}", bool(config.hf_hub_id or config.url), wanted.classes, config.num_classes)
        _check_hub(name, bool(config.hf_hub_id))
    with quiet(), downloading(f"timm:{name}") if online else contextlib.nullcontext():
        network = timm.create_model(name, pretrained=online, **_head(wanted))
    model = normalized(network, network.pretrained_cfg["mean"], network.pretrained_cfg["std"])
    if local is not None:
        load_weights_(model, local, adapt=layout_filter(network))
    return model


def torchvision_model(name: str, wanted: Wanted) -> nn.Module:
    """A torchvision classifier behind the normalisation of its default weights."""
    models = import_package("torchvision").models
    if name not in torchvision_names():
        raise InputError(f"torchvision has no classifier {name!r}{suggest(name, torchvision_names())}")
    default = models.get_model_weights(name).DEFAULT
    file = default.url.rsplit("/", 1)[-1]
    local = wanted.local([file, *(f"{name}{suffix}" for suffix in _SUFFIXES)])
    if wanted.pretrained and local is None:
        _check_pretrained(f"torchvision:{name}", True, wanted.classes, len(default.meta["categories"]))
        local = download(default.url, Path(torch.hub.get_dir()) / "checkpoints" / file)
    with quiet():
        network = models.get_model(name, weights=None, **_head(wanted))
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
    return [name for name in timm.list_models() if timm.models.model_entrypoint(name).__module__.startswith("timm.")]


def torchvision_names() -> list[str]:
    models = import_package("torchvision").models
    return list(models.list_models(module=models))


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
        shown = sys.stderr.isatty() and not is_silent()
        torch.hub.download_url_to_file(url, str(path), expected[1] if expected else None, progress=shown)
    return path


@contextlib.contextmanager
def downloading(what: str, way_out: str = "download the file elsewhere and name it with --weights") -> Iterator[None]:
    """Turn whatever a failed download raises into one error with a way out."""
    try:
        yield
    except LipforgeError:
        raise
    except Exception as error:  # requests, urllib, hub clients and sockets each have their own
        raise WeightsError(f"the weights of {what} could not be downloaded ({first_line(error)}); {way_out}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Other packages' deprecation warnings silenced, and their prints sent to stderr: stdout is for results."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


def _check_pretrained(spec: str, has_weights: bool, classes: int | None, found: int) -> None:
    if not has_weights:
        raise WeightsError(
            f"{spec} has no pretrained weights; give a file (--weights) or use random weights (--no-weights)"
        )
    if classes is not None and classes != found:
        raise WeightsError(
            f"the pretrained weights of {spec} have {found} classes, not {classes}; give a file with {classes} "
            "(--weights) or use random weights (--no-weights)"
        )


def _check_hub(name: str, on_hub: bool) -> None:
    """timm says that huggingface_hub is missing where the installed one is merely too new for it."""
    if not on_hub or importlib.import_module("timm.models._hub").has_hf_hub():
        return
    found = "none" if importlib.util.find_spec("huggingface_hub") is None else version("huggingface_hub")
    raise WeightsError(
        f"timm {version('timm')} cannot download timm:{name} with the installed huggingface_hub ({found}); "
        "install one that it can use (pip install 'huggingface_hub<2'), or give a file with --weights"
    )


def _head(wanted: Wanted) -> dict[str, int]:
    return {} if wanted.classes is None else {"num_classes": wanted.classes}


def _import_torchvision() -> None:
    """Import torchvision if it is installed, also where its compiled operators cannot be loaded.

    PyPI's torchvision is a CUDA build, whose library does not load beside a CPU build of torch. Its import then fails
    because it asks for two operators by name. No classifier calls them, so it is enough to declare them.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return  # a package that needs it will say so
    except RuntimeError as error:
        if _declared or "operator torchvision::" not in str(error):
            raise
        # A fragment leaves the name "torchvision" free for the library itself.
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's own
        _declared.append(library)
        for operator in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, operator):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for module in [module for module in sys.modules if module.partition(".")[0] == "torchvision"]:
            del sys.modules[module]  # what the failed import left behind
        importlib.import_module("torchvision")
