"""Several processes under torchrun do what one does."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from lipforge.errors import InputError
from lipforge.ranks import Rank
from lipforge.training import train
from lipforge.training.workers import agree, average_, check_shares, share
from tests.torchrun import torchrun
from tests.training.test_run import CONFIG, DATA
from tests.training.toys import toy_net

RUN = """
import sys, torch
from dataclasses import replace
from lipforge.ranks import leave
from lipforge.training import train
from tests.training.test_run import CONFIG, DATA
from tests.training.toys import toy_net
torch.set_num_threads(1)
model = toy_net(norm=False).double()
train(model, (DATA[0].double(), DATA[1]), replace(CONFIG, epochs=1, awp=0.01), out=sys.argv[1])
leave(0)
"""


def test_two_processes_train_to_the_weights_of_one(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(RUN)
    code, errors = torchrun(2, str(script), str(tmp_path / "two"))
    assert code == 0, errors
    # Without batch norm the mean of two half batches' gradients is the whole batch's; float64 keeps the sums equal.
    model = toy_net(norm=False).double()
    one = train(model, (DATA[0].double(), DATA[1]), replace(CONFIG, epochs=1, awp=0.01), out=tmp_path / "one")
    single, double = load_file(one.weights), load_file(tmp_path / "two" / "weights.safetensors")
    for name in single:
        torch.testing.assert_close(double[name], single[name], rtol=1e-9, atol=1e-12)


def test_the_shares_of_a_batch_are_equal_and_make_up_the_batch():
    shares = [share(torch.arange(12), Rank(rank, 3)) for rank in range(3)]
    assert {len(part) for part in shares} == {4}
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(12))


def test_one_process_averages_and_agrees_with_itself():
    tensor = torch.tensor([1.0, 2.0])
    average_([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert agree([0.5, 0.25], torch.device("cpu")) == [0.5, 0.25]


def test_a_batch_that_cannot_be_shared_equally_is_refused():
    with pytest.raises(InputError, match="multiple of the 2 processes, got 7"):
        check_shares(7, Rank(0, 2))
