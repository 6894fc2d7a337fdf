import pytest

from lipforge.cli import options
from lipforge.data import FolderOptions


@pytest.mark.parametrize(("spec", "passed"), [("hub:somewhere", False), ("npz:a.npz", False), ("folder:images", True)])
def test_resizing_applies_to_image_folders_and_to_nothing_else(monkeypatch, spec, passed):
    seen = []
    monkeypatch.setattr(options, "load_data", lambda spec, **given: seen.append(given["folder"]))
    options.open_data(spec, None, None, None, FolderOptions())
    assert (seen[0] is not None) == passed
