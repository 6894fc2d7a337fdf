import sys

import pytest

from lipforge.errors import InputError, LipforgeError
from lipforge.search import plot_tradeoff
from tests.search.test_choose import search


def test_every_attacked_ratio_is_in_the_picture_and_the_chosen_one_is_marked(tmp_path):
    found = search(ratios=(0.001, 0.3, 0.6))
    plot_tradeoff(found, tmp_path / "deep" / "tradeoff.svg")
    # Matplotlib writes each text as a comment beside its outlines.
    picture = (tmp_path / "deep" / "tradeoff.svg").read_text()
    for score in found.scores:
        words = score.label + (" (chosen)" if score.ratio == found.chosen else "")
        assert (f"<!-- {words} -->" in picture) == (score.status != "not attacked")


def test_a_png_is_a_png(tmp_path):
    plot_tradeoff(search(), tmp_path / "tradeoff.png")
    assert (tmp_path / "tradeoff.png").read_bytes().startswith(b"\x89PNG")


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf, got .*tradeoff\.gif"):
        plot_tradeoff(search(), tmp_path / "tradeoff.gif")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LipforgeError, match=r"matplotlib.*lipforge\[plots\]"):
        plot_tradeoff(search(), tmp_path / "tradeoff.png")
