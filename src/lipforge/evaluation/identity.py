"""What an evaluation is called: its attack in words, and the name of its shards and result."""

from dataclasses import replace

from lipforge.attacks import Attack, AutoAttack, spelled, text_form
from lipforge.errors import InputError
from lipforge.runs.identity import ADDRESS, slug
from lipforge.types import Threat


def attack_text(attack: Attack) -> str:
    """The attack's text form; for an attack of the user, which has none, its representation.

    AutoAttack always says its version: to the command line, plain `autoattack` is the fast one.

    >>> attack_text(AutoAttack("fast", precision="bfloat16"))
    'autoattack:version=fast,precision=bfloat16'
    """
    if not callable(getattr(attack, "run", None)):
        raise InputError(f"attack must be an attack such as PGD(steps=50) or parse_attack('pgd'), got {attack!r}")
    if isinstance(attack, AutoAttack):
        others = spelled(replace(attack, version=AutoAttack.version)).partition(":")[2]
        return f"{attack.name}:version={attack.version}{',' * bool(others)}{others}"
    try:
        return text_form(attack)
    except InputError:
        return ADDRESS.sub("", repr(attack))


def task_name(label: str, attack: str, threat: Threat, seed: int) -> str:
    """The name of an evaluation's shards and result in a run directory.

    >>> task_name("forged", "autoattack:version=fast", Threat("linf", "8/255"), seed=0)
    'forged__autoattack-version=fast__linf-8over255'
    """
    parts = [slug(part) for part in (label, attack, str(threat).replace("/", "over"))]
    return "__".join([*parts, *([f"seed-{seed}"] if seed else [])])
