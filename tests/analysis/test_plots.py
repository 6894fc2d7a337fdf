import pytest
import torch

from lipforge.analysis import analyse
from lipforge.analysis.plots import FIGURES, plot_analysis
from lipforge.forge import forge_
from tests.nets import ResidualNet, images, seeded


def report(adversarial):
    model = seeded(ResidualNet, width=3)
    forge_(model, images(2, size=5), ratio=0.1)
    return analyse(model, images(2, size=5), adversarial, spectral_images=1)


def test_every_figure_becomes_a_file(tmp_path):
    pytest.importorskip("matplotlib")
    paths = plot_analysis(report(torch.zeros(2, 3, 5, 5)), tmp_path / "new")
    assert [path.name for path in paths] == [f"{name}.png" for name in FIGURES]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_figure_without_anything_to_show_is_left_out(tmp_path):
    pytest.importorskip("matplotlib")
    assert "gain.png" not in [path.name for path in plot_analysis(report(None), tmp_path)]
