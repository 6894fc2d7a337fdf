"""SVG elements as escaped text, and the axes that charts share."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Scale = Callable[[float], float]


def tag(name: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """One element; children and attribute values that are not Markup are escaped, attributes of None are left out.

    A trailing underscore is dropped and others become hyphens: class_="x" gives class="x", text_anchor text-anchor.

    >>> tag("text", "a < b", x=1.25, class_="tick")
    Markup('<text x="1.2" class="tick">a &lt; b</text>')
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None:
            text = coordinate(value) if isinstance(value, float) else str(value)
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    inner = "".join(str(escape(child)) for child in children)
    return Markup("".join(parts) + (f">{inner}</{name}>" if children else "/>"))


def coordinate(value: float) -> str:
    """A tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


def canvas(width: float, height: float, alt: str, children: Iterable[Markup]) -> Markup:
    """The chart's outer element. It carries the alternative text, and is a tab stop: the arrow keys visit its marks."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=alt,
        tabindex="0",
        focusable="true",
        class_="chart",
        data_width=coordinate(width),
    )


def scale(domain: tuple[float, float], places: tuple[float, float]) -> Scale:
    """The straight line that takes the ends of `domain` to `places`."""
    (low, high), (first, last) = domain, places
    span = high - low or 1.0
    return lambda value: first + (value - low) / span * (last - first)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them.

    >>> ticks(0, 1), ticks(0.31, 0.36, 3)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.32, 0.34, 0.36])
    """
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def padded(values: Sequence[float], *, share: float = 0.08, floor: float | None = None) -> tuple[float, float]:
    """A range with some air around `values`; it does not go below `floor` unless they do."""
    low, high = min(values), max(values)
    air = share * (high - low) or abs(high) * share or 1.0
    bottom = low - air
    if floor is not None and low >= floor:
        bottom = max(bottom, floor)
    return bottom, high + air


@dataclass(frozen=True)
class Mark:
    """How one of several things is drawn everywhere: its colour class and the shape of its points."""

    css: str
    shape: str


MARKS = {
    "base": Mark("base", "circle"),
    "forged": Mark("forged", "square"),
    "third": Mark("third", "triangle"),
    "fourth": Mark("fourth", "diamond"),
    "fifth": Mark("fifth", "cross"),
}


def point(x: float, y: float, role: str, size: float = 4.5) -> Markup:
    """A data point in the role's colour and shape, so that colour is never the only difference."""
    mark = MARKS[role]
    css = f"point fill-{mark.css}"
    if mark.shape == "circle":
        return tag("circle", cx=x, cy=y, r=size, class_=css)
    if mark.shape == "square":
        return tag("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, class_=css)
    outline = {
        "triangle": [(0, -1.25), (1.2, 0.95), (-1.2, 0.95)],
        "diamond": [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)],
        "cross": [(-1, -0.4), (-0.4, -0.4), (-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4), (1, 0.4), (0.4, 0.4),
                  (0.4, 1), (-0.4, 1), (-0.4, 0.4), (-1, 0.4)],
    }[mark.shape]  # fmt: skip
    corners = " ".join(f"{coordinate(x + dx * size)},{coordinate(y + dy * size)}" for dx, dy in outline)
    return tag("polygon", points=corners, class_=css)
