"""The logger "lipforge": silent by default, and told what is warned of, resumed and written."""

import logging
import subprocess
import sys
import warnings

import pytest

import lipforge as lf
from lipforge.logs import logger, warn
from tests.nets import ResidualNet, images, seeded


def test_a_warning_is_logged_and_raised_where_it_was_caused(caplog):
    with pytest.warns(UserWarning, match="careful") as raised:
        warn("careful", stacklevel=1)
    assert [(record.name, record.levelname, record.message) for record in caplog.records] == [
        ("lipforge", "WARNING", "careful")
    ]
    assert raised[0].filename == __file__


def test_nobody_who_does_not_listen_hears_a_thing():
    code = "import lipforge.logs as logs; logs.logger.warning('psst')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]


def test_what_is_written_resumed_and_healed_is_logged(caplog, tmp_path):
    caplog.set_level(logging.INFO, logger="lipforge")
    model, x = seeded(ResidualNet), images(4)
    arguments = model, (x, model(x).argmax(dim=1)), lf.FGSM(), lf.Threat("linf", "1/255")
    for again in range(3):
        if again == 2:
            (damaged,) = tmp_path.glob("shards/*/0000.json")
            damaged.write_text("{")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lf.evaluate(*arguments, run=lf.RunDir.open(tmp_path), batch_size=2)
    said = [record.message for record in caplog.records]
    name = "model__fgsm__linf-1over255"
    assert said.count(f"wrote {tmp_path / 'results' / name}.json") == 3
    assert f"{name}: resuming, 4 of 4 images are finished" in said
    assert f"{name}: resuming, 2 of 4 images are finished" in said
    assert any("0000.json is damaged" in text for text in said)


def test_a_calibration_is_logged(caplog):
    caplog.set_level(logging.INFO, logger="lipforge")
    lf.forge_(seeded(ResidualNet), images(4), data="mine")
    assert "calibrated 4 sites on 4 images of mine" in caplog.messages
