"""The gallery."""

import base64
import binascii

from lipforge.reports.blocks import Picture, Pictures, Section
from lipforge.reports.read import DamageError, Fields, Run
from lipforge.reports.text import eps_text, number

PNG = b"\x89PNG\r\n\x1a\n"


def pictures(run: Run) -> Section | None:
    """Images, their perturbations, and what the model said before and after."""
    galleries = tuple(run.parsed("gallery", parse_gallery))
    lead = "Each row: the image, its perturbation around grey, the perturbed image; below, what the model said."
    return Section("gallery", "Images", lead, galleries) if galleries else None


def parse_gallery(fields: Fields) -> Pictures:
    """A gallery from its JSON; only real PNGs pass."""
    largest, times = fields.number("largest"), fields.number("magnification")
    caption = (
        f"{fields.text('title', 'Images and their perturbations')}. Perturbations are magnified {number(times)} "
        f"times; the largest change of a pixel is {eps_text(largest)}."
    )
    return Pictures(caption, tuple(_picture(item) for item in fields.each("items")))


def _picture(item: Fields) -> Picture:
    label, before, after = (item.text(name) for name in ("label", "before", "after"))
    fooled = before == label != after
    change = f"{before} → {after}" if before != after else f"{before}, before and after"
    return Picture(
        clean=_png(item, "clean"),
        perturbation=_png(item, "perturbation"),
        adversarial=_png(item, "adversarial"),
        heading=f"{label} (image {item.whole('index')})",
        lines=(f"{'✕ fooled' if fooled else '✓ stands' if before == label else '– wrong before'}: {change}",),
        fooled=fooled,
    )


def _png(item: Fields, name: str) -> str:
    text = item.text(name)
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content.startswith(PNG):
        raise DamageError(f"{item.where}: '{name}' must be a PNG in base64")
    return text
