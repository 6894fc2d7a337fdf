"""What an evaluation is called: its attack in words, and the name of its shards and result."""

from lipforge.attacks import Attack, AutoAttack, text_form
from lipforge.errors import InputError
from lipforge.runs.identity import ADDRESS, slug
from lipforge.types import Threat


def attack_text(attack: Attack) -> str:
    """The attack's text form; for an attack of the user, which has none, its representation.

    AutoAttack always says its version: to the command line, plain `autoattack` is the fast one.
    """
    if isinstance(attack, AutoAttack):
        return f"{attack.name}:version={attack.version}"
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
