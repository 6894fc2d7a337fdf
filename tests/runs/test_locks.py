import time

from lipforge.runs import locks
from lipforge.runs.locks import locked, take_lock


def test_a_lock_is_held_by_one_and_free_afterwards(tmp_path):
    path = tmp_path / "lock"
    with open(path, "ab") as other:
        with locked(path):
            assert take_lock(other.fileno()) == "busy"
        assert take_lock(other.fileno()) == "held"


def test_a_lock_that_stays_taken_holds_nobody_up_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    started = time.monotonic()
    with locked(tmp_path / "lock"), locked(tmp_path / "lock"):
        assert time.monotonic() - started >= 0.1
