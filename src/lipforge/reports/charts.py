"""The two charts of a report, lines over a number and rows of bars or intervals, as escaped SVG at any width."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from markupsafe import Markup, escape

from lipforge.text import number

Scale = Callable[[float], float]
Write = Callable[[float], str]
Mark = tuple[float, str]
"""A tick: where it is, and its text."""


@dataclass(frozen=True)
class Point:
    """A value at a place, with its interval where one is known, and what hovering over it says."""

    x: float
    y: float
    tip: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """Points in the colour of a role, by default joined by a line."""

    name: str
    role: str
    points: tuple[Point, ...]
    dashed: bool = False
    joined: bool = True


@dataclass(frozen=True)
class Axis:
    """What an axis shows; `marks` places ticks by hand, `whole` keeps those that are whole numbers, for counts."""

    title: str
    range: tuple[float, float] | None = None
    write: Write = number
    marks: tuple[Mark, ...] = ()
    floor: float | None = None
    whole: bool = False

    def domain(self, values: Sequence[float]) -> tuple[float, float]:
        """The numbers at its two ends, for a chart of these values."""
        return self.range or (padded(values, floor=self.floor) if values else (0.0, 1.0))

    def ticks(self, domain: tuple[float, float], across: Scale) -> list[Mark]:
        """Where the ticks are drawn, with their text."""
        found = [(v, self.write(v)) for v in ticks(*domain) if not self.whole or v == round(v)]
        return [(across(value), text) for value, text in self.marks or found]


def percent_tick(share: float) -> str:
    return f"{100 * share:g}"


def percent_axis(title: str) -> Axis:
    return Axis(title, (0.0, 1.0), percent_tick)


@dataclass(frozen=True)
class Lines:
    """One line per series over a common horizontal axis."""

    alt: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    height: float = 260.0
    title: str = ""
    level: float | None = None

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        return tuple(dict.fromkeys((series.role, series.name) for series in self.series))

    def draw(self, width: float) -> Markup:
        left, right, top, bottom = 42.0, width - 14, 46.0 if self.title else 28.0, self.height - 42
        wide = self.x.domain([p.x for s in self.series for p in s.points])
        high = self.y.domain([v for s in self.series for p in s.points for v in (p.y, *(p.interval or ()))])
        across, up = scale(wide, (left, right)), scale(high, (bottom, top))
        parts = [tag("text", self.title, x=4.0, y=14.0, class_="panel-title")] if self.title else []
        parts.append(tag("text", self.y.title, x=4.0, y=top - 14, class_="axis-title"))
        for y, text in self.y.ticks(high, up):
            parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", text, x=left - 6, y=y + 4, class_="tick end"))
        for place, text in _thin(self.x.ticks(wide, across)):
            parts.append(tag("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="axis"))
            parts.append(tag("text", text, x=place, y=bottom + 17, class_="tick mid"))
        parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
        parts.append(tag("text", self.x.title, x=(left + right) / 2, y=self.height - 5, class_="axis-title mid"))
        if self.level is not None:
            parts.append(tag("line", x1=left, x2=right, y1=up(self.level), y2=up(self.level), class_="level"))
        for series in self.series:
            path = "L".join(f"{coordinate(across(p.x))} {coordinate(up(p.y))}" for p in series.points)
            css = f"line stroke-{series.role}" + (" dashed" if series.dashed else "")
            parts += [tag("path", d=f"M{path}", class_=css)] if series.joined else []
        # Small steps sideways, so that intervals of several series at one place do not cover each other.
        step = min(3.0, width / max((len(s.points) for s in self.series), default=1) / 8)
        for index, series in enumerate(self.series):
            offset = step * (index - (len(self.series) - 1) / 2)
            parts += [_dot(series, p, across(p.x) + offset, up) for p in series.points]
        return canvas(width, self.height, self.alt, parts)


@dataclass(frozen=True)
class Bar:
    """One bar or interval of a row: from `start` to `end`; `at` puts a point on it, `text` is written beside it."""

    role: str
    start: float
    end: float
    tip: str
    text: str = ""
    at: float | None = None
    faint: bool = False


@dataclass(frozen=True)
class Row:
    """A heading, and under it one thin bar per role."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Rows:
    """Rows of bars or of dots with intervals over a common horizontal axis, labels above so that a phone fits them."""

    alt: str
    x: Axis
    rows: tuple[Row, ...]
    legend: tuple[tuple[str, str], ...]
    glyph: Literal["bar", "interval"] = "bar"
    title: str = ""

    def draw(self, width: float) -> Markup:
        left, right, y = 8.0, width - (96 if self.glyph == "bar" else 52), 8.0
        domain = self.x.domain([v for row in self.rows for bar in row.bars for v in (bar.start, bar.end)])
        across = scale(domain, (left, right))
        body: list[Markup] = []
        for row in self.rows:
            body.append(tag("text", row.label, x=left, y=y + 12, class_="row-label"))
            y += 20
            for bar in row.bars:
                body.append(self._bar(bar, across, y + 7))
                y += 17
            y += 9
        grid: list[Markup] = []
        for place, text in _thin(self.x.ticks(domain, across)):
            grid.append(tag("line", x1=place, x2=place, y1=4.0, y2=y, class_="grid"))
            grid.append(tag("text", text, x=place, y=y + 16, class_="tick mid"))
        grid.append(tag("text", self.x.title, x=(left + right) / 2, y=y + 34, class_="axis-title mid"))
        return canvas(width, y + 42, self.alt, [*grid, *body])

    def _bar(self, bar: Bar, across: Scale, y: float) -> Markup:
        first, last = sorted((across(bar.start), across(bar.end)))
        parts: list[Markup] = []
        if self.glyph == "bar":
            css = f"bar fill-{bar.role}" + (" faint" if bar.faint else "")
            parts.append(tag("rect", x=first, y=y - 6, width=max(last - first, 1.5), height=12.0, class_=css))
        else:
            css = f"whisker stroke-{bar.role}"
            parts.append(tag("line", x1=first, x2=last, y1=y, y2=y, class_=css))
            parts += [tag("line", x1=x, x2=x, y1=y - 4, y2=y + 4, class_=css) for x in (first, last)]
        if bar.at is not None:
            parts.append(point(across(bar.at), y, bar.role))
        parts.append(tag("text", bar.text, x=last + 7, y=y + 4, class_="value"))
        parts.append(tag("rect", x=first - 8, y=y - 8.5, width=last - first + 70, height=17.0, class_="hit"))
        return tag("g", *parts, class_="mark", data_tip=bar.tip)


Chart: TypeAlias = Lines | Rows


def _thin(marks: Sequence[Mark]) -> list[Mark]:
    """The marks that fit beside each other, at about 6.4 pixels per character; the first always stays."""
    kept: list[Mark] = []
    for place, text in marks:
        if not kept or place - kept[-1][0] >= 3.2 * (len(text) + len(kept[-1][1])) + 8:
            kept.append((place, text))
    return kept


def _dot(series: Series, here: Point, x: float, up: Scale) -> Markup:
    parts: list[Markup] = []
    if here.interval:
        low, high = (up(bound) for bound in here.interval)
        parts.append(tag("line", x1=x, x2=x, y1=low, y2=high, class_=f"whisker stroke-{series.role}"))
    parts.append(point(x, up(here.y), series.role, 3.8))
    parts.append(tag("circle", cx=x, cy=up(here.y), r=11.0, class_="hit"))
    return tag("g", *parts, class_="mark", data_tip=here.tip)


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
    box = f"0 0 {coordinate(width)} {coordinate(height)}"
    return tag("svg", *children, viewBox=box, width=width, height=height, role="img", aria_label=alt, tabindex="0",
               focusable="true", class_="chart", data_width=width)  # fmt: skip


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
    if not high - low > 1e-300:  # nor where steps would be too small for a float
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def padded(values: Sequence[float], *, floor: float | None = None) -> tuple[float, float]:
    """A range with some air around `values`; it does not go below `floor` unless they do."""
    low, high = min(values), max(values)
    air = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    bottom = low - air if floor is None or low < floor else max(low - air, floor)
    return bottom, high + air


CORNERS = {
    "third": [(0, -1.25), (1.2, 0.95), (-1.2, 0.95)],
    "fourth": [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)],
    "fifth": [(-1, -0.4), (-0.4, -0.4), (-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4), (1, 0.4), (0.4, 0.4),
              (0.4, 1), (-0.4, 1), (-0.4, 0.4), (-1, 0.4)],
}  # fmt: skip
"""A triangle, a diamond and a cross for the points of these roles; the base has circles, the forged model squares."""


def point(x: float, y: float, role: str, size: float = 4.5) -> Markup:
    """A data point in the role's colour and shape, so that colour is never the only difference."""
    css = f"point fill-{role}"
    if role == "base":
        return tag("circle", cx=x, cy=y, r=size, class_=css)
    if role == "forged":
        return tag("rect", x=x - size, y=y - size, width=2 * size, height=2 * size, class_=css)
    corners = " ".join(f"{coordinate(x + dx * size)},{coordinate(y + dy * size)}" for dx, dy in CORNERS[role])
    return tag("polygon", points=corners, class_=css)
