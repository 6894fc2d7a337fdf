"""The names of an audit's stages, which are also the words for how an image fell."""

from collections.abc import Sequence

from lipforge.attacks.trial import MISCLASSIFIED, ROBUST

CLEAN, PLAIN, TRANSFER, REFINED, LONGER, SQUARE, EVEN, DOUBLE = (
    "clean",
    "plain",
    "images of the other",
    "images of the other, refined",
    "longer, from new starts",
    "square",
    "even budget",
    "float64",
)
OWN, OTHER = "own gradients", "gradients of the other"


def stage_names(surrogates: Sequence[str], *, square: bool) -> list[str]:
    """All stages in the order in which they run."""
    return [PLAIN, TRANSFER, *surrogates, REFINED, LONGER, *([SQUARE] if square else []), EVEN, DOUBLE]


RESERVED = frozenset({ROBUST, MISCLASSIFIED, CLEAN, OWN, OTHER, *stage_names([], square=True)})
"""Words that no surrogate may have for a name: what it broke would be counted as something else."""
