"""Attacks by the names that tables give them."""

import re

KINDS = {
    "clean": r"clean|natural|nat|no attack",
    "fgsm": r"fgsm",
    "pgd": r"pgd((?: ?\d+)*)(?: steps)?",
    "cw": r"(?:cw|c&w|c & w|carlini wagner)(?: ?(?:inf|linf|∞))?((?: ?\d+)*)(?: steps)?",
    "aa": r"aa|auto ?attack(?: standard)?|aa standard",
    "transfer": r"transfer",
}
"""What the rules know, each with the spellings it goes by, in small letters and with spaces between words."""

Name = tuple[str, str]
"""What an attack is ("" for what no rule knows), and what tells it apart from others of its kind."""


def known(attack: str) -> Name:
    """The attack's kind, and its number of steps if the name says it; an unknown attack keeps its name.

    >>> known("PGD-20"), known("pgd_20"), known("Auto-Attack"), known("MIM")
    (('pgd', '20'), ('pgd', '20'), ('aa', ''), ('', 'mim'))
    """
    words = re.sub(r"[\s_\-^()/]+", " ", attack.lower()).strip()
    for kind, spelling in KINDS.items():
        found = re.fullmatch(spelling, words)
        if found:
            return kind, "-".join("".join(found.groups(default="")).split())
    return "", words
