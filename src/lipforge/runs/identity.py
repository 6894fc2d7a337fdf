"""What tells two pieces of work apart: the model and the data, as small values that go into a task's config. Versions
and devices are recorded beside the results, and are not part of it."""

import hashlib
import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from lipforge.batching import BATCH_SIZE, ImageData
from lipforge.digests import state_tensors, tensor_bytes
from lipforge.errors import InputError
from lipforge.records import lipforge_version
from lipforge.results import Change
from lipforge.types import Classifier, Threat

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
SAMPLED = 16  # images of a data set that its identity looks at


def identified(classifier: Classifier, identity: Mapping[str, Any] | None, *, in_run: bool) -> dict[str, Any]:
    """What tells a classifier from others: its own identity, and what the caller says; a function in a run needs that.

    >>> identified(len, {"model": "mine-v2"}, in_run=True)
    {'function': 'builtins.len', 'identity': {'model': 'mine-v2'}}
    """
    classifier = getattr(classifier, "original", classifier)  # a prepared model is its original
    if in_run and not identity and not isinstance(classifier, nn.Module):
        raise InputError(
            "a classifier that is no module cannot be told from another when a run is resumed; say what it is "
            "with identity={'model': 'mine-v2'}, or wrap it in an nn.Module"
        )
    return {**model_identity(classifier), **({"identity": dict(identity)} if identity else {})}


def change_of(classifier: Classifier) -> Change | None:
    """What lipforge changed in a classifier: a part that it added says so, whatever package that part comes from."""
    model = getattr(classifier, "original", classifier)
    for module in model.modules() if isinstance(model, nn.Module) else ():
        tell = getattr(module, "lipforge_change", None)
        if tell is not None:
            found: Change | None = tell(model)
            return found
    return None


def model_identity(classifier: Classifier) -> dict[str, Any]:
    """Digests of a module's tensors (buffers that are not saved among them), of its printed form and of its settings:
    every plain attribute of every module, as the ratio of a forged function. A function has only its name."""
    if not isinstance(classifier, nn.Module):
        kind = getattr(classifier, "__qualname__", type(classifier).__qualname__)
        return {"function": f"{getattr(classifier, '__module__', '')}.{kind}"}
    digest = hashlib.sha256()
    packed = {name: value for name, value in classifier.state_dict().items() if not isinstance(value, Tensor)}
    tensors = [*classifier.named_parameters(), *classifier.named_buffers(), *state_tensors(packed)]
    for name, tensor in sorted(tensors, key=itemgetter(0)):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor_bytes(tensor))
    # A class that averages over transforms has the name of the model's own, and not every model prints it.
    tta = getattr(type(classifier), "lipforge_tta", None)
    return {
        "class": type(classifier).__name__,
        **({} if tta is None else {"tta": repr(tta)}),
        "tensors": digest.hexdigest(),
        "printed": hashlib.sha256(ADDRESS.sub("", repr(classifier)).encode()).hexdigest(),
        "settings": hashlib.sha256(repr(list(_settings(classifier))).encode()).hexdigest(),
    }


def data_identity(data: ImageData) -> dict[str, Any]:
    """Name, count, which images of it (for a view), and a digest: of everything where it is in memory, and of up to 16
    images and labels spread over the set."""
    describe = getattr(data, "describe", None)
    about = dict(describe()) if callable(describe) else {"name": data.name, "count": len(data)}
    for key in about.keys() & {"name", "of"}:
        about[key] = canonical(str(about[key]))
    at = sorted({round(step * (len(data) - 1) / max(SAMPLED - 1, 1)) for step in range(SAMPLED)})
    images, labels = data.batch(at)
    digest = hashlib.sha256(tensor_bytes(images))
    digest.update(tensor_bytes(labels.to(torch.int64)))
    content = getattr(data, "content", None)
    return {**about, "sample": digest.hexdigest(), **({} if content is None else {"content": content})}


def image_digests(data: ImageData) -> tuple[str, ...]:
    """A short digest of each image, by which the same image is found again in another data set."""
    batches = (images for images, _ in data.batches(BATCH_SIZE))
    return tuple(hashlib.sha256(tensor_bytes(image)).hexdigest()[:16] for images in batches for image in images)


def canonical(name: str) -> str:
    """A data set's name in one spelling: a set without a split is its test set.

    >>> canonical("cifar10:test/first 200")
    'cifar10/first 200'
    """
    return re.sub(r":test(?=/|$)", "", name)


def environment() -> dict[str, Any]:
    """Versions, machine, threads and accelerators, ready for JSON."""
    return {
        "lipforge": lipforge_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "system": platform.system(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def slug(text: str) -> str:
    """`text` as part of a file name, with a digest where characters other than `:`, `,` and blanks had to go."""
    plain = re.sub(r"[^A-Za-z0-9._=+]+", "-", text).strip("-.") or "x"
    if len(plain) <= 60 and re.fullmatch(r"[A-Za-z0-9._=+:, -]+", text):
        return plain
    return f"{plain[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def threat_slug(threat: Threat) -> str:
    """A threat as part of a file name, such as linf-8over255."""
    return str(threat).replace(" ", "-").replace("/", "over")


def _settings(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for name, part in module.named_modules():
        for key, value in sorted(vars(part).items()):
            if key != "training" and isinstance(value, bool | int | float | str | tuple | None):
                yield name, key, ADDRESS.sub("", repr(value))
