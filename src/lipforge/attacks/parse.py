"""Attacks as text: `pgd:steps=50,restarts=2`, or several with ` + ` between them, both ways."""

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from lipforge.attacks.apgd import APGD, TargetedAPGD
from lipforge.attacks.base import Attack, Cascade, spelled
from lipforge.attacks.boundary import Boundary
from lipforge.attacks.cascades import AutoAttack, Escalate, Fast, MinimumNorm, Nearest, Restarts
from lipforge.attacks.cw import CW
from lipforge.attacks.fab import FAB
from lipforge.attacks.minimum import DDN, FMN
from lipforge.attacks.pgd import FGSM, PGD
from lipforge.attacks.rays import RayS
from lipforge.attacks.square import Square
from lipforge.errors import InputError, suggest
from lipforge.types import parse_number

KINDS: tuple[type[Any], ...] = (
    FGSM, PGD, CW, APGD, TargetedAPGD, FAB, FMN, DDN, Square, RayS, Boundary, Nearest, Restarts, Escalate,
    AutoAttack, Fast, MinimumNorm,
)  # fmt: skip
ATTACKS: Mapping[str, type[Any]] = MappingProxyType({kind.name: kind for kind in KINDS})

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "step": "step_size",
        "random": "random_start",
        "repeats": "eot_iter",
        "searches": "binary_search_steps",
        "constant": "initial_const",
        "rate": "lr",
        "share": "p_init",
        "alpha": "alpha_max",
        "prepare": "fold",
        "rounds": "restarts",
    }
)
"""What settings, and the attack `restarts`, were called before."""


def parse_attack(text: str) -> Attack:
    """The attack that `text` names, with the settings after the colon and defaults for the rest.

    Several attacks with " + " between them are a cascade.

    >>> parse_attack("pgd:steps=50,restarts=2")
    PGD(steps=50, restarts=2, step_size=0.25, random_start=True, loss='ce')
    """
    if " + " in text:
        return Cascade(tuple(parse_attack(part) for part in text.split(" + ")))
    name, _, settings = text.strip().partition(":")
    if name not in ATTACKS:
        found = f"got {name!r} in {text!r}{_renamed(name, ATTACKS)}"
        raise InputError(f"attack must be one of {', '.join(ATTACKS)}, {found}")
    fields = {field.name: field.default for field in dataclasses.fields(ATTACKS[name])}
    values: dict[str, Any] = {}
    for setting in settings.split(",") if settings else ():
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or key not in fields:
            found = f"got {setting!r}{_renamed(key, fields)}"
            raise InputError(f"{text!r}: settings of {name} are {', '.join(fields)}, as key=value; {found}")
        if key in values:
            raise InputError(f"{text!r}: {key} is given twice")
        values[key] = _read(value, fields[key], f"{key} in {text!r}")
    return cast(Attack, ATTACKS[name](**values))


def text_form(attack: Attack) -> str:
    """The shortest text that `parse_attack` turns into this attack.

    >>> text_form(PGD(steps=50))
    'pgd:steps=50'
    """
    if isinstance(attack, Cascade):
        return " + ".join(text_form(member) for member in attack.attacks)
    if ATTACKS.get(attack.name) is not type(attack):
        raise InputError(f"only attacks of the kinds {', '.join(ATTACKS)} have a text form, got {attack!r}")
    return spelled(attack)


def attack_text(attack: Attack) -> str:
    """The attack's text form; for an attack of the user, which has none, its representation without addresses.

    >>> attack_text(Fast(precision="bfloat16"))
    'fast:precision=bfloat16'
    """
    if not callable(getattr(attack, "run", None)):
        raise InputError(f"attack must be an attack such as PGD(steps=50) or parse_attack('pgd'), got {attack!r}")
    if isinstance(attack, Cascade):
        return " + ".join(map(attack_text, attack.attacks))
    try:
        return text_form(attack)
    except InputError:
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(attack))


def _renamed(name: str, known: Mapping[str, Any]) -> str:
    """What to add to an error about an old name, or a misspelt one."""
    return f"; {name} is called {RENAMED[name]} now" if RENAMED.get(name) in known else suggest(name, known)


def _read(value: str, default: Any, name: str) -> Any:
    """`value` as the type of the setting's default."""
    if isinstance(default, bool):
        if value not in ("true", "false"):
            raise InputError(f"{name} must be true or false, got {value!r}")
        return value == "true"
    if isinstance(default, int):
        if not value.lstrip("-").isdecimal():
            raise InputError(f"{name} must be a whole number, got {value!r}")
        return int(value)
    return parse_number(value, name=name) if isinstance(default, float) else value
