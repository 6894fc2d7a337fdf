"""Batches that shrink where memory runs out: nothing is lost, and the outcomes are those of smaller batches."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipforge import memory
from lipforge.attacks import APGD, PGD, Cascade, Refine, Square, fast
from lipforge.auditing import audit
from lipforge.certification import certify
from lipforge.errors import AttackError, MemoryLimitError
from lipforge.evaluation import clean_accuracy, curve, evaluate, sweep, transfer
from lipforge.memory import in_batches
from lipforge.runs import RunDir
from tests.auditing.quick import PLAN
from tests.auditing.quick import THREAT as AUDITED
from tests.auditing.quick import small as forged_net
from tests.evaluation.toys import THREAT, labelled, linear, untimed

MODEL = linear(classes=4)
X, Y = labelled(MODEL)
ATTACK = Cascade((APGD(steps=3), Square(queries=5)))
NO_MEMORY = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried")


@pytest.fixture(autouse=True)
def nothing_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has found out about memory is none of the next one's business."""
    monkeypatch.setattr(memory, "_most", {})


class Limited(nn.Module):
    """A model that takes at most `most` images with gradients and `forwards` without; its last `sizes` are kept."""

    def __init__(self, model: nn.Module, most: int, forwards: int = 1000, error: BaseException = NO_MEMORY) -> None:
        super().__init__()
        self.model, self.sizes = model, list[int]()
        # A function, which is no part of a module's identity.
        self.check = check(lambda x: len(x) > (most if x.requires_grad else forwards), error)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        self.check(x)
        found: Tensor = self.model(x)
        return found


def check(too_many: Callable[[Tensor], bool], error: BaseException) -> Callable[[Tensor], None]:
    def raise_if_too_many(x: Tensor) -> None:
        if too_many(x):
            raise error

    return raise_if_too_many


def failing(times: int) -> nn.Module:
    """A model that has no memory for more than 5 images with gradients, but only so many times."""
    left, made = [times], Limited(MODEL, 1000)

    def too_many(x: Tensor) -> bool:
        failed = x.requires_grad and len(x) > 5 and left[0] > 0
        left[0] -= failed
        return failed

    made.check = check(too_many, NO_MEMORY)
    return made


@pytest.mark.parametrize(
    "error",
    [
        NO_MEMORY,
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
    ],
    ids=["cpu", "python", "cuda", "mps"],
)
def test_an_evaluation_goes_on_with_smaller_batches_and_says_so_once(error):
    limited = Limited(MODEL, 4, error=error)
    with pytest.warns(UserWarning, match="out of memory with batches of 22 images .* on with batches of 11, a") as told:
        found = evaluate(limited, (X, Y), ATTACK, THREAT)
    assert len(told) == 1
    assert found.outcome == evaluate(MODEL, (X, Y), ATTACK, THREAT).outcome


def test_the_smaller_size_stays_for_the_rest_of_the_process():
    with pytest.warns(UserWarning, match="out of memory"):
        evaluate(Limited(MODEL, 5), (X, Y), PGD(steps=2), THREAT)
    again = Limited(MODEL, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(again, (X, Y), PGD(steps=2), THREAT)
    assert again.sizes.count(5) > 0
    assert max(again.sizes) <= 22  # forwards alone fit


@pytest.mark.parametrize("attack", [PGD(steps=3), ATTACK, fast()], ids=["pgd", "cascade", "fast"])
def test_the_result_is_that_of_the_smaller_batch_with_its_passes_stages_and_notes(attack):
    wanted = evaluate(MODEL, (X, Y), attack, THREAT, batch_size=5, shard_size=20)
    with pytest.warns(UserWarning, match="out of memory"):
        found = evaluate(failing(times=2), (X, Y), attack, THREAT, batch_size=20)
    assert untimed(found) == untimed(wanted)


def test_forward_passes_that_do_not_fit_are_made_in_smaller_batches():
    with pytest.warns(UserWarning, match="out of memory"):
        found = clean_accuracy(Limited(MODEL, 1, forwards=3), (X, Y))
    assert found.correct == clean_accuracy(MODEL, (X, Y)).correct


def test_points_that_an_attack_holds_for_each_image_stay_with_their_images():
    points = (X + THREAT.eps * torch.sign(torch.randn(X.shape, generator=torch.Generator().manual_seed(0)))).clamp(0, 1)
    wanted = Cascade((Refine(points, steps=2),)).run(MODEL, X, Y, threat=THREAT)
    with pytest.warns(UserWarning, match="out of memory"):
        found = Cascade((Refine(points, steps=2),)).run(Limited(MODEL, 4), X, Y, threat=THREAT)
    assert found.outcome == wanted.outcome
    torch.testing.assert_close(found.margin, wanted.margin)


def accuracies(model: nn.Module, name: str) -> Any:
    """What a command finds out about the model, without its times."""
    data = (X, Y)
    if name == "curve":
        return curve(model, data, eps=0.1).smallest_eps
    if name == "sweep":
        return [row.outcome for row in sweep({"base": model}, data, [PGD(steps=2)], [THREAT]).rows]
    if name == "transfer":
        return transfer(model, MODEL, data, PGD(steps=2), THREAT, refine=3).outcome
    return certify(model, data, n=50, n0=10, sigma=0.1, limit=3).images


@pytest.mark.parametrize("name", ["curve", "sweep", "transfer", "certify"])
def test_every_command_goes_on_with_smaller_batches(name):
    wanted = accuracies(MODEL, name)
    with pytest.warns(UserWarning, match="out of memory"):
        assert accuracies(Limited(MODEL, 4, forwards=7), name) == wanted


def test_an_audit_goes_on_with_smaller_batches():
    model, data = forged_net()
    wanted = audit(model, data, AUDITED, plan=PLAN)
    model.register_forward_pre_hook(lambda _, given: check(lambda x: len(x) > 2, NO_MEMORY)(given[0]))
    with pytest.warns(UserWarning, match="out of memory"):
        found = audit(model, data, AUDITED, plan=PLAN)
    assert (found.verdict, found.base_outcome, found.candidate_outcome) == (
        wanted.verdict,
        wanted.base_outcome,
        wanted.candidate_outcome,
    )


def test_a_run_that_ran_out_of_memory_resumes_with_more_and_without_computing_again(tmp_path):
    class Killed(BaseException):
        pass

    little = Limited(MODEL, 4)
    beside = little.check
    little.check = lambda x: beside(x) if not torch.equal(x[:1], X[11:12]) else (_ for _ in ()).throw(Killed())
    with RunDir.open(tmp_path) as run:
        with pytest.raises(Killed), pytest.warns(UserWarning, match="out of memory"):
            evaluate(little, (X, Y), ATTACK, THREAT, run=run, batch_size=11)
        assert run.shards() == 1
        memory._most.clear()  # another process
        more = Limited(MODEL, 1000)
        found = evaluate(more, (X, Y), ATTACK, THREAT, run=run, batch_size=11)
    assert found.outcome == evaluate(MODEL, (X, Y), ATTACK, THREAT, batch_size=11).outcome
    first = evaluate(Limited(MODEL, 1000), (X[:11], Y[:11]), ATTACK, THREAT)
    assert sum(more.sizes) < found.forwards - first.forwards / 2  # the first shard was not computed again


def test_memory_that_does_not_suffice_for_one_image_is_a_clear_error():
    with (
        pytest.warns(UserWarning, match="out of memory"),
        pytest.raises(MemoryLimitError, match=r"out of memory even with one image at a time \(.*can't allocate"),
    ):
        evaluate(Limited(MODEL, 0), (X, Y), ATTACK, THREAT)


def test_an_attack_of_the_user_that_runs_out_of_memory_gets_fewer_images():
    def mine(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if len(x) > 4:
            raise MemoryError
        return x

    with pytest.warns(UserWarning, match="out of memory"):
        assert evaluate(MODEL, (X, Y), mine, THREAT).robust == (MODEL(X).argmax(dim=1) == Y).tolist()


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    def mine(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        raise RuntimeError("shapes do not match")

    with pytest.raises(AttackError, match="shapes do not match"):
        evaluate(MODEL, (X, Y), mine, THREAT)


def test_no_image_at_all_is_computed_once():
    assert in_batches(lambda rows: (rows.start, rows.stop), torch.zeros(0, 3, 4, 4), "attack") == [(0, 0)]


def test_a_forward_pass_that_does_not_fit_beside_its_attack_halves_the_attack():
    """What an attack holds may leave no room for even one image; half as many images in the attack leave some."""
    held = [0]

    def passed(rows: slice) -> int:
        if held[0] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows.stop - rows.start

    def attacked(rows: slice) -> int:
        held[0] = rows.stop - rows.start
        return sum(in_batches(passed, X[rows], "forward"))

    with pytest.warns(UserWarning, match="out of memory"):
        assert in_batches(attacked, X[:16], "attack") == [4] * 4
    assert set(memory._most.values()) == {4}, "and forward passes are not held to single images"


def test_a_smaller_size_is_kept_for_images_of_this_shape_alone():
    sizes = []

    def fits(most: int):
        def compute(rows: slice) -> None:
            if rows.stop - rows.start > most:
                raise MemoryError
            sizes.append(rows.stop - rows.start)

        return compute

    with pytest.warns(UserWarning, match="out of memory"):
        in_batches(fits(2), torch.zeros(8, 3, 9, 9), "attack")
    in_batches(fits(8), torch.zeros(8, 3, 8, 8), "attack")
    assert sizes == [2, 2, 2, 2, 8]


def test_a_short_last_batch_that_fails_once_makes_later_batches_no_smaller():
    images, done, failed = torch.zeros(10, 3, 9, 9), list[int](), list[int]()

    def compute(rows: slice) -> int:
        size = rows.stop - rows.start
        if size == 10 or (size == 2 and 5 in done and not failed):
            failed.append(size)
            raise MemoryError
        done.append(size)
        return size

    with pytest.warns(UserWarning, match="out of memory"):
        assert in_batches(compute, images, "attack") == [5, 5]
    failed.clear()
    assert in_batches(compute, images[:7], "attack") == [5, 1, 1]
    assert in_batches(compute, images, "attack") == [5, 5]
