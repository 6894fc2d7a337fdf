"""What an attack reports."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Stage:
    """What one attack of a cascade left: images that still stand, and the passes and seconds it took in all."""

    attack: str
    robust: int
    forwards: int
    backwards: int
    seconds: float


@dataclass(frozen=True)
class AttackResult:
    """Images (N, C, H, W) inside the threat, which of them fool the model, and what each has cost.

    The image of one that stands is the strongest point that was found for it: that with the largest margin.

    `outcome` says for each image "robust", "misclassified" (as it was given) or which attack fooled it. `forwards` and
    `backwards` (N,) count the passes each image went through. `given_up` are the robust images that autoattack("fast")
    left before its last round. `closest` (N,) is the largest margin, max_{i != y} z_i - z_y, that any point reached.
    `notes` are the reasons to doubt the result.
    """

    images: Tensor
    fooled: Tensor
    forwards: Tensor
    backwards: Tensor
    given_up: Tensor
    closest: Tensor
    outcome: tuple[str, ...]
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]
