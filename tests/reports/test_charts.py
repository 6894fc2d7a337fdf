import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from lipforge.reports.charts import Axis, Bar, Lines, Point, Row, Rows, Series, padded, scale, tag, ticks

LINES = Lines(
    "alt <text>",
    Axis("eps", (0.0, 10.0)),
    Axis("%", (0.0, 100.0)),
    (Series("base", "base", (Point(0, 100, "first"), Point(10, 0, "last", (0.0, 20.0)))),),
)
ROWS = Rows("alt", Axis("images", (0.0, 200.0)), (Row("apgd", (Bar("base", 50, 150, "tip", "-100"),)),), ())


def drawn(chart, width=400.0):
    return ET.fromstring(str(chart.draw(width)))


def test_a_line_goes_from_the_upper_left_to_the_lower_right_of_its_box():
    (path,) = drawn(LINES).iter("path")
    (x1, y1), (x2, y2) = (map(float, pair) for pair in re.findall(r"([\d.]+) ([\d.]+)", path.attrib["d"]))
    axis = next(
        e for e in drawn(LINES).iter("line") if e.attrib["class"] == "axis" and e.attrib["y1"] == e.attrib["y2"]
    )
    assert (x1, x2) == (float(axis.attrib["x1"]), float(axis.attrib["x2"]))
    assert y2 == float(axis.attrib["y1"])
    assert y1 < y2


def test_every_point_says_what_it_is_and_its_interval_is_drawn():
    marks = list(drawn(LINES).iter("g"))
    assert [mark.attrib["data-tip"] for mark in marks] == ["first", "last"]
    assert [len(list(mark.iter("line"))) for mark in marks] == [0, 1]


def test_a_bar_is_as_long_as_its_share_of_the_axis():
    root = drawn(ROWS)
    (bar,) = (element for element in root.iter("rect") if "bar" in element.attrib["class"])
    places = {text.text: float(text.attrib["x"]) for text in root.iter("text") if "tick" in text.attrib["class"]}
    unit = (places["200"] - places["0"]) / 200
    assert float(bar.attrib["width"]) == pytest.approx(100 * unit, abs=0.1)
    assert float(bar.attrib["x"]) == pytest.approx(places["0"] + 50 * unit, abs=0.1)


@pytest.mark.parametrize("width", [330.0, 720.0])
@pytest.mark.parametrize("chart", [LINES, ROWS], ids=["lines", "rows"])
def test_nothing_is_drawn_outside_the_canvas(chart, width):
    root = drawn(chart, width)
    for element in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert -1 <= float(element.attrib.get(name, 0)) <= width
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"].startswith("alt")


def test_text_and_attributes_are_escaped():
    made = str(tag("text", "</svg><script>", data_tip='"><script>'))
    assert "<script>" not in made
    assert ET.fromstring(made).attrib["data-tip"] == '"><script>'


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.31, 0.36), (-3, 7), (0, 64 / 255), (1e-7, 3e-7), (0, 12345)])
def test_ticks_are_few_evenly_spaced_and_inside(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert low - 1e-9 <= found[0] < found[-1] <= high + 1e-9
    gaps = [b - a for a, b in pairwise(found)]
    assert max(gaps) == pytest.approx(min(gaps))


def test_a_range_of_one_value_still_has_room():
    low, high = padded([3.0, 3.0])
    assert low < 3 < high
    assert padded([0.1, 0.5], floor=0.0)[0] >= 0
    assert scale((3.0, 3.0), (0.0, 1.0))(3.0) == 0.0


def test_counts_have_ticks_at_whole_numbers_only():
    bars = (Row("a", (Bar("base", 0, 12, "tip"),)),)
    root = drawn(Rows("alt", Axis("images", (0.0, 12.0), whole=True), bars, ()))
    assert [text.text for text in root.iter("text") if "tick" in text.attrib["class"]] == ["0", "5", "10"]
