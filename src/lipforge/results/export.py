"""What an exported file is, and how far it is from the model."""

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Parity:
    """An exported file beside its model, image by image.

    `equal` of `count` images get the same class. Logits differ by at most `largest`, which is within `tolerance`, but
    for `apart` images: there an activation lies within rounding of a threshold, so that a mask that jumps may decide
    either way; their logits differ by at most `apart_largest`.
    """

    count: int
    equal: int
    largest: float
    tolerance: float
    apart: int = 0
    apart_largest: float = 0.0

    def __str__(self) -> str:
        within = f"logits within {self.largest:.1e} (tolerance {self.tolerance:.1e})"
        if not self.apart:
            return f"{self.equal} of {self.count} classes equal, {within}"
        images = "image has" if self.apart == 1 else "images have"
        return (
            f"{self.equal} of {self.count} classes equal, {within}; {self.apart} {images} an activation within "
            f"rounding of a threshold and may fall on either side of it: logits within {self.apart_largest:.1e}"
        )


@dataclass(frozen=True)
class ExportResult:
    """A file that was written: `digest` is the SHA-256 of its bytes, `recipe` the digest of what was done to the model.

    `parity` is None if it was not checked; `opset` is that of ONNX. Step masks that became part of a ReLU are
    `masks_fused`; `channels_removed` had nothing but zero weights behind.
    """

    kind: ClassVar[str] = "export"
    path: str
    file_format: Literal["onnx", "pt2", "safetensors"]
    size: int
    digest: str
    model_name: str
    recipe: str | None
    mask: str | None
    sites: int
    tta: str | None
    opset: int | None
    masks_fused: int
    channels_removed: int
    parity: Parity | None
    seconds: float
