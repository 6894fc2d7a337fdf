import re
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


class _Told:
    """A note that says when it has been read."""

    def __init__(self):
        self.read = threading.Semaphore(0)

    def __str__(self):
        self.read.release()
        return "31.0 % robust  apgd"


def test_without_a_terminal_a_line_now_and_then_says_how_far_the_work_is(capsys, monkeypatch):
    monkeypatch.setattr(lipforge.progress, "PERIOD", 0.05)
    note = _Told()
    with progress("[evaluating]", 10, status=note) as step:
        assert note.read.acquire(timeout=60)
        step(4)
        step(2)
        while note.read.acquire(blocking=False):
            pass
        assert note.read.acquire(timeout=60)
        assert note.read.acquire(timeout=60)
        step(4)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[evaluating\]: 0 of 10, 31.0 % robust  apgd", lines[0])
    assert any(re.search(r": 6 of 10, about .* left, 31.0 % robust  apgd$", line) for line in lines)
    assert lines[-1].endswith(": 10 of 10, 31.0 % robust  apgd")


def test_short_work_without_a_terminal_and_work_nobody_wants_to_see_stay_silent(capsys, monkeypatch):
    with progress("calibrating", 2) as step:
        step(2)
    monkeypatch.setattr(lipforge.progress, "PERIOD", 0.001)
    with progress("calibrating", 2, show=False) as step:
        time.sleep(0.05)
        step(2)
    assert capsys.readouterr() == ("", "")


def test_the_lines_end_when_the_work_fails(capsys, monkeypatch):
    monkeypatch.setattr(lipforge.progress, "PERIOD", 0.001)
    before = threading.active_count()
    with pytest.raises(RuntimeError), progress("calibrating", None):
        raise RuntimeError
    assert threading.active_count() == before


def test_what_was_done_before_says_nothing_of_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(lipforge.progress, "PERIOD", 0.05)
    note = _Told()
    with progress("evaluating", 100, done=50, status=note) as step:
        assert note.read.acquire(timeout=60)
        step(10)  # one step is no speed yet
        while note.read.acquire(blocking=False):
            pass
        assert note.read.acquire(timeout=60)
        assert note.read.acquire(timeout=60)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith(": 50 of 100, 31.0 % robust  apgd")
    assert lines[-1].endswith(": 60 of 100, 31.0 % robust  apgd")


def test_short_pieces_of_work_in_a_row_share_one_clock(capsys, monkeypatch):
    """The first piece ends before a line is due; the next one writes it, although it is as short."""
    now = time.monotonic()
    clock = lipforge.progress._Clock(began=now - 35.0, ended=now - 1.0)
    monkeypatch.setattr(lipforge.progress, "_clock", clock)
    note = _Told()
    with progress("second", 10, status=note):
        assert note.read.acquire(timeout=20)  # by a clock of its own it would be 30 seconds
    assert capsys.readouterr().err.splitlines()[0].endswith(" second: 0 of 10, 31.0 % robust  apgd")
    assert clock.ended >= now
    assert lipforge.progress._pause() == pytest.approx(60.0, abs=5.0)


def test_after_a_rest_the_clock_begins_anew(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(lipforge.progress, "_clock", lipforge.progress._Clock(began=now - 900.0, ended=now - 11.0))
    with progress("second", 10):
        assert lipforge.progress._pause() == pytest.approx(30.0, abs=5.0)


def test_only_the_first_rank_shows_progress(capsys, monkeypatch):
    monkeypatch.setattr(lipforge.progress, "PATIENCE", 0.0)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with progress("calibrating", 2, show=True) as step:
        time.sleep(0.05)
        step(2)
    assert capsys.readouterr() == ("", "")
