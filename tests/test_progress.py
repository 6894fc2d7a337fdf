import threading
import time

import pytest

import lipforge.progress
from lipforge.progress import progress


def test_work_shorter_than_patience_stays_silent(capsys, monkeypatch):
    monkeypatch.setattr(lipforge.progress, "PATIENCE", 600.0)
    with progress("calibrating", 2, show=True) as step:
        step(2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("label", ["[/red]", "[old] :dog:"])
def test_long_work_shows_its_label_and_note_as_they_are_even_before_the_first_step(capsys, monkeypatch, label):
    monkeypatch.setattr(lipforge.progress, "PATIENCE", 0.01)
    with progress(label, 7, show=True) as step:
        deadline = time.monotonic() + 60
        while any(isinstance(thread, threading.Timer) for thread in threading.enumerate()):
            assert time.monotonic() < deadline, "patience never ended"
            time.sleep(0.01)
        step(7, "[/bold]")
    out, err = capsys.readouterr()
    assert out == ""
    assert label in err
    assert "7/7" in err
    assert "[/bold]" in err
