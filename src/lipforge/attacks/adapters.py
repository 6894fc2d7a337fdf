"""Attacks of other tools and of the user's own. They search as they like; what they found counts only once the model
itself is fooled, inside the threat and [0, 1]."""

import hashlib
import inspect
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from lipforge.attacks.base import Attack, Cascade
from lipforge.attacks.parse import parse_attack
from lipforge.attacks.state import AttackState
from lipforge.digests import tensor_bytes
from lipforge.errors import AttackError, InputError, LipforgeError, import_extra
from lipforge.outputs import logits_in
from lipforge.results import Note
from lipforge.types import Classifier, Threat

Craft: TypeAlias = Callable[[nn.Module, Tensor, Tensor, Threat], Tensor]
AnyAttack: TypeAlias = Attack | str | Callable[..., Tensor]
"""An attack, its text form, or a function of a model, images and labels (and the threat) to adversarial images."""

ORDERS = {"linf": np.inf, "l2": 2, "l1": 1}
ART_NORMS = {
    "BoundaryAttack": "l2",
    "CarliniL0Method": "l0",
    "CarliniL2Method": "l2",
    "CarliniLInfMethod": "linf",
    "DeepFool": "l2",
    "ElasticNet": "l1, l2",
    "NewtonFool": "l2",
    "PixelAttack": "l0",
    "SaliencyMapMethod": "l0",
    "SignOPTAttack": "l2",
    "ThresholdAttack": "linf",
    "VirtualAdversarialMethod": "l2",
    "ZooAttack": "l2",
}
"""The norms of ART's attacks that take none."""

SIMPLE = (bool, int, float, str, type(None))


@dataclass(frozen=True, repr=False)
class Foreign(Attack):
    """An attack that is not lipforge's: `craft` turns images that are still robust into adversarial images.

    Points outside the threat or [0, 1] do not count, and a note says how many there were. Passes through the model are
    counted, and shared out evenly among the images. Global random numbers are seeded for each batch and put back.
    """

    name: str = field(repr=False)  # type: ignore[misc]  # each has its own, with its settings
    craft: Craft = field(repr=False)
    is_identified: bool = field(default=True, repr=False)
    """Whether its name tells it from every other attack, as that of a function does not."""

    def attack(self, state: AttackState) -> None:
        at = state.robust()
        if len(at) == 0:
            return
        x, model = state.x[at], Watched(state.model, state.x)
        found = self._crafted(model, x.clone(), state.y[at], state)
        state.forwards[at] += _shares(model.forwards, at)
        state.backwards[at] += _shares(model.backwards, at)
        outside = ~state.norm.inside(found, x, state.eps)
        if outside.any():
            text = f"got a point of {self.name} outside the threat or [0, 1], which does not count"
            state.notes.append(Note("outside", text, int(outside.sum()), len(state.x)))
        points = torch.where(outside[:, None, None, None], x, found)
        state.record(points, at, state.logits(points, at))

    def _crafted(self, model: "Watched", x: Tensor, y: Tensor, state: AttackState) -> Tensor:
        try:
            with torch.enable_grad(), seeded(state.seed, state.ids, x.device):
                found = self.craft(model, x, y, state.threat)
        except LipforgeError:
            raise
        except Exception as error:  # whatever another tool raises
            raise AttackError(f"the attack {self.name} failed: {type(error).__name__}: {error}") from error
        found = torch.from_numpy(found) if isinstance(found, np.ndarray) else found
        if not isinstance(found, Tensor) or found.shape != x.shape:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f"attack must return images of the shape {tuple(x.shape)}, as it was given, got {got}")
        return found.detach().to(x)

    def __repr__(self) -> str:
        return self.name


class Watched(nn.Module):
    """A classifier as a module in eval mode whose output is its logits, with the images that went through it counted.
    Other attributes are those of the model."""

    def __init__(self, model: Classifier, like: Tensor) -> None:
        super().__init__()
        self.model, self.dtype, self.forwards, self.backwards = model, like.dtype, 0, 0
        self.anchor = nn.Parameter(like.new_zeros(()), requires_grad=False)  # by which tools find the device
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits = logits_in(self.model(x.to(self.dtype)), rows=len(x))
        if logits.requires_grad:
            logits.register_hook(self._came_back)  # type: ignore[no-untyped-call]  # untyped in torch
        return logits

    def _came_back(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":
                raise
            return getattr(self.model, name)


def as_attack(attack: AnyAttack) -> Attack:
    """The attack of a text, of a function `(model, x, y)` or `(model, x, y, threat)`, or the attack itself."""
    if isinstance(attack, str):
        return parse_attack(attack)
    packages = _packages(attack)
    if "foolbox" in packages:
        return from_foolbox(attack)
    if callable(getattr(attack, "run", None)) and not isinstance(attack, type):
        return attack  # type: ignore[return-value]  # an attack of the user's may have nothing but `run`
    if isinstance(attack, type) or packages & {"torchattacks", "art"} or not callable(attack):
        raise InputError(
            f"attack must be an attack such as PGD(steps=50), its text 'pgd:steps=50' or a function (model, x, y), got "
            f"{attack!r}; for other tools use lf.from_torchattacks(torchattacks.PGD) or lf.from_art(FastGradientMethod)"
        )
    return Foreign(
        getattr(attack, "__qualname__", type(attack).__qualname__), _with_threat(attack), is_identified=False
    )


def is_function(attack: AnyAttack) -> bool:
    """Whether a run cannot tell an attack from another by its text: a function, or one with a function or an object
    among its settings."""
    if isinstance(attack, Cascade):
        return any(map(is_function, attack.attacks))
    if "foolbox" in _packages(attack):
        return not _is_identified(attack)
    if isinstance(attack, Foreign):
        return not attack.is_identified
    return not isinstance(attack, str) and not callable(getattr(attack, "run", None))


def from_foolbox(attack: Any) -> Foreign:
    """A foolbox attack, such as `foolbox.attacks.LinfPGD(steps=20)`, at the eps of the threat."""
    name = f"foolbox.{_described(attack)}"

    def craft(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        _check_norm(name, _norm_text(getattr(getattr(attack, "distance", None), "p", "")), threat)
        wrapped = import_extra("foolbox", "dev").PyTorchModel(model, bounds=(0, 1), device=x.device)
        clipped: Tensor = attack(wrapped, x, y, epsilons=threat.eps)[1]
        return clipped

    return Foreign(name, craft, _is_identified(attack))


def from_torchattacks(kind: Callable[..., Any], **settings: Any) -> Foreign:
    """A torchattacks attack by its class and settings, such as `from_torchattacks(torchattacks.PGD, steps=20)`.

    The threat gives eps, and the norm where the class takes one. Others have their own, as PGDL2, and are refused for a
    threat in another.
    """
    _refuse(settings, "eps", "norm", "model")
    name = f"torchattacks.{_name_of(kind)}{_listed(settings)}"

    def craft(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        given = {"eps": threat.eps, "norm": threat.norm.capitalize()}
        attack = kind(model, **_taken(kind, given), **settings)
        _check_norm(name, _documented_norms(attack), threat)
        _check_norm(name, _norm_text(getattr(attack, "norm", "")), threat)
        found: Tensor = attack(x, y)
        return found

    return Foreign(name, craft, isinstance(kind, type) and _is_identified(settings))


def from_art(kind: Callable[..., Any], **settings: Any) -> Foreign:
    """An evasion attack of the Adversarial Robustness Toolbox by its class and settings, such as
    `from_art(ProjectedGradientDescent, eps_step=0.01, max_iter=20)`; the threat gives eps and norm.

    A class that has a norm of its own, as DeepFool, is refused for a threat in another.
    """
    _refuse(settings, "eps", "norm", "estimator", "classifier")
    name = f"art.{_name_of(kind)}{_listed(settings)}"

    def craft(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        with torch.no_grad():
            classes = model(x[:1]).shape[1]
        classifier = import_extra("art.estimators.classification", "dev").PyTorchClassifier(
            model=model,
            loss=nn.CrossEntropyLoss(),
            input_shape=tuple(x.shape[1:]),
            nb_classes=classes,
            clip_values=(0.0, 1.0),
            device_type="cpu" if x.device.type == "cpu" else "gpu",
        )
        usual = {"eps": threat.eps, "norm": ORDERS[threat.norm], "batch_size": len(x), "verbose": False}
        given = {name: value for name, value in _taken(kind, usual).items() if name not in settings}
        attack = kind(classifier, **given, **settings)
        fixed = [ART_NORMS[each.__name__] for each in type(attack).__mro__ if each.__name__ in ART_NORMS]
        _check_norm(name, fixed[0] if fixed else _norm_text(getattr(attack, "norm", "")), threat)
        return torch.from_numpy(attack.generate(x=x.cpu().numpy(), y=y.cpu().numpy()))

    return Foreign(name, craft, isinstance(kind, type) and _is_identified(settings))


@contextmanager
def seeded(seed: int, ids: Tensor, device: torch.device) -> Iterator[None]:
    """Global random numbers that depend on the seed and the first image's id only; afterwards they are as before."""
    number, cuda = (1_000_003 * seed + int(ids[0])) % 2**32, [device] if device.type == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(cuda):
        torch.default_generator.manual_seed(number)
        for each in cuda:
            torch.cuda.default_generators[each.index or 0].manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _shares(total: int, at: Tensor) -> Tensor:
    """`total` passes shared out among the images at these positions, as evenly as whole numbers allow."""
    return total // len(at) + (torch.arange(len(at), device=at.device) < total % len(at)).long()


def _with_threat(function: Callable[..., Tensor]) -> Craft:
    """The function, called with the threat if it has a place for it: a fourth argument without default, or `threat`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function in C has no signature
        parameters = []
    needed = [
        each
        for each in parameters
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 3 or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return function
    if any(each.name == "threat" for each in parameters):
        return lambda model, x, y, threat: function(model, x, y, threat=threat)
    return lambda model, x, y, threat: function(model, x, y)


def _taken(kind: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values that the class takes by name; a function of any settings takes eps."""
    parameters = inspect.signature(kind).parameters
    any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in values.items() if name in parameters or (any_name and name == "eps")}


def _refuse(settings: Mapping[str, Any], *names: str) -> None:
    if taken := [name for name in names if name in settings]:
        raise InputError(f"settings must not have {taken[0]!r}: model, norm and eps come with the evaluation's threat")


def _check_norm(name: str, norms: str, threat: Threat) -> None:
    """Refuse an attack whose norms, such as "linf, l2", are known and lack that of the threat."""
    if norms and threat.norm not in norms.split(", "):
        raise InputError(f"{name} works in {norms}, and the threat is {threat}; take the attack for that norm")


def _documented_norms(attack: Any) -> str:
    """The line "Distance Measure : Linf, L2" in the docstring of a torchattacks class, or of one above it."""
    docs = "\n".join(each.__doc__ or "" for each in type(attack).__mro__)
    found = re.search(r"Distance Measure *: *(.+)", docs)
    return found[1].strip().lower() if found else ""


def _norm_text(norm: Any) -> str:
    """A norm of another tool as we write it, or nothing.

    >>> _norm_text(np.inf), _norm_text("L2"), _norm_text(1), _norm_text("wasserstein")
    ('linf', 'l2', 'l1', '')
    """
    if isinstance(norm, int | float):
        return f"l{norm:g}"
    text = f"l{str(norm).lower().removeprefix('l')}"
    return text if text in {"l0", *ORDERS} else ""


def _packages(value: Any) -> set[str]:
    """The packages that the class of a value and those above it come from."""
    return {each.__module__.partition(".")[0] for each in type(value).__mro__}


def _name_of(kind: Callable[..., Any]) -> str:
    return str(getattr(kind, "__name__", type(kind).__name__))


def _listed(settings: Mapping[str, Any]) -> str:
    """Settings as they are written in a call.

    >>> _listed({"steps": np.int64(5), "sizes": [1, 2], "loss": nn.CrossEntropyLoss()})
    '(steps=5, sizes=[1, 2], loss=CrossEntropyLoss)'
    """
    return f"({', '.join(f'{key}={_written(value)}' for key, value in settings.items())})"


def _written(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, SIMPLE):
        return repr(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written(key)}: {_written(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        opened, closed = "[]" if isinstance(value, list) else "()"
        return f"{opened}{', '.join(map(_written, value))}{closed}"
    if isinstance(value, Tensor | np.ndarray) and _is_identified(value):
        content = tensor_bytes(value) if isinstance(value, Tensor) else value.tobytes()
        return f"{value.dtype}{list(value.shape)}:{hashlib.sha256(content).hexdigest()[:16]}"
    return _described(value) if "foolbox" in _packages(value) else _name_of(value)


def _is_identified(value: Any) -> bool:
    """Whether `_written` tells a value from every other one: it has no more than the name of an object it knows not."""
    if isinstance(value, dict):
        return all(_is_identified(key) and _is_identified(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_identified, value))
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return isinstance(value, (*SIMPLE, np.generic, Tensor)) or (
        "foolbox" in _packages(value) and _is_identified(vars(value))
    )


def _described(value: Any) -> str:
    return type(value).__name__ + _listed(vars(value))
