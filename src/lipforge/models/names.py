"""Nearest matches for a name that does not exist."""

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """The end of an error message: the nearest known names, or nothing where none is near.

    >>> suggest("resnet2O", ["resnet20", "vit-tiny"])
    "; did you mean 'resnet20'?"
    >>> suggest("xyz", ["resnet20"])
    ''
    """
    spelled = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=count)
    return f"; did you mean {' or '.join(repr(spelled[other]) for other in near)}?" if near else ""
