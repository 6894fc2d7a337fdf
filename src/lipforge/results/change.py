"""What lipforge had changed in a model that was measured."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """Which change of a model a result is about; a result of a model that lipforge did not change has none.

    `label` says which parts it has, as `Recipe.label` does. `mask` and `ratio` are those of its forged functions, and
    None without any; where ratios differ, `ratio` is None and `ratios` has that of each site. `tta` are its transforms.
    `recipe` is the `Recipe.digest` of all of it, or None for what no recipe can hold: several masks or calibrations.
    """

    label: str
    mask: str | None = None
    ratio: float | None = None
    ratios: Mapping[str, float] | None = None
    tta: str | None = None
    recipe: str | None = None
