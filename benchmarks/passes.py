"""Where the time of the attacks goes: passes through a model and its folded copy, beside a product of two matrices.

    python benchmarks/passes.py [--weights-dir DIR] [--only cifar10-resnet] [--rounds 9]

For each model: the time of a forward pass, alone and with the backward pass to the image, through the model and through
the folded copy that attacks search on; how much of the folded forward pass is spent in convolutions and matrix
products, and at how many GFLOP/s, beside a product of two 1,024 x 1,024 matrices; what the passes of `autoattack` on a
robust image take of the time of the reference's passes, as they are and with the multiplications alone at that speed;
and which share of the passes of `fast`, weighted by their time, goes into its tests for masked gradients. One thread,
CPU seconds, medians over interleaved rounds. The last line is JSON; benchmarks/results/passes.json keeps it by model,
and tools/tables.py puts it into docs/attacks.md.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyautoattack
import torch
from peers import eps_of, load_any
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import lipforge as lf
from lipforge.allocator import keep_freed_memory
from lipforge.attacks import AttackState, autoattack, fast, prepare
from lipforge.attacks.masking import masked_gradients
from lipforge.records import read_json, write_json
from lipforge.types import Classifier, Threat

RESULTS = Path(__file__).parent / "results" / "passes.json"
MODELS = "resnet2b_eps2,cnn_a_adv4,cifar10-vit,cifar10-resnet,pni_resnet20_adv_v1"
PRODUCTS = ("mkldnn_convolution", "convolution_backward", "addmm", "mm", "bmm", "scaled_dot_product")
TESTS = ("probe", "boundary")
"""The stages of `fast` that look for masked gradients; what escalates after them is an attack."""


class Passes(NamedTuple):
    """Forwards, backwards, or the time of one of each."""

    forward: float
    backward: float

    def times(self, each: "Passes") -> float:
        return self.forward * each.forward + self.backward * each.backward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64, help="in one pass")
    parser.add_argument("--attacked", type=int, default=200, help="by fast")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--weights-dir", type=Path, help="a folder with weights of others, as in autoattack.py")
    parser.add_argument("--only", default=MODELS, help="models, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = {"keeps_memory": keep_freed_memory(), "torch": torch.__version__, "images": options.images}
    most, theirs, ours = peak(options.rounds), reference_passes(), own_passes()
    settings |= {"peak": round(most, 1), "reference": theirs, "autoattack": ours}
    print(json.dumps(settings), flush=True)
    x, y = lf.load_data("cifar10:test").batch(range(5000, 5000 + options.attacked))
    found = read_json(RESULTS) if RESULTS.exists() else {}
    for name in options.only.split(","):
        model = load_any(name, options.weights_dir).requires_grad_(False)
        prepared = prepare(model, x)
        measured, folded = times(model, prepared.folded, x[: options.images], options.rounds)
        gflop, share = gflops(model, x[:1]), in_products(prepared.folded, x[: options.images])
        floor = Passes(1000 * gflop / most, 1000 * gflop / most)  # nothing but products, at the yardstick's speed
        found[name] = {
            "settings": settings,
            "measured": time.strftime("%Y-%m-%d %H:%M"),
            "ms": [round(value, 3) for value in (*measured, *folded)],
            "mflop": round(1000 * gflop, 1),
            "in_products": round(share, 3),
            "gflops_in_products": round(1000 * gflop / (share * folded.forward), 1),
            "passes_of_reference": round(ours.times(folded) / theirs.times(measured), 3),
            "passes_at_peak": round(ours.times(floor) / theirs.times(measured), 3),
            "tests_in_fast": round(tests_in_fast(prepared, x, y, Threat("linf", eps_of(name)), folded), 3),
        }
        print(f"{name}: {json.dumps(found[name])}", flush=True)
        write_json(RESULTS, found)
    print(json.dumps(found))


def peak(rounds: int) -> float:
    """GFLOP/s of a product of two matrices, the best of all rounds."""
    a = torch.rand(1024, 1024)
    return 2 * 1024**3 / min(seconds({"product": lambda: a @ a}, 3 * rounds)["product"]) / 1e9


class Counting(nn.Module):
    """A linear classifier that counts the images that pass through it, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, 10).requires_grad_(False)
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits: Tensor = self.linear(x.flatten(1))
        if logits.requires_grad:
            logits.register_hook(self._seen)
        return logits

    def _seen(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def robust_image() -> tuple[Counting, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x = Counting().eval(), torch.rand(1, 3, 8, 8)
    return model, x, model.linear(x.flatten(1)).argmax(dim=1)


def reference_passes() -> Passes:
    """What pyautoattack standard takes on an image that stays robust, of 10 classes."""
    model, x, y = robust_image()
    attack = pyautoattack.AutoAttack(model, norm="Linf", eps=1e-5, version="standard", seed=0, device="cpu")
    attack.run_standard_evaluation(x, y, batch_size=1)
    return Passes(model.forwards, model.backwards)


def own_passes() -> Passes:
    """The same for `autoattack`, with its test for masked gradients."""
    model, x, y = robust_image()
    autoattack().run(model, x, y, threat=Threat("linf", 1e-5))
    return Passes(model.forwards, model.backwards)


def times(model: nn.Module, folded: Classifier, x: Tensor, rounds: int) -> tuple[Passes, Passes]:
    """Milliseconds per image of a forward and a backward pass, through the model and through its folded copy."""
    timed = seconds(
        {
            "forward": lambda: forward(model, x),
            "folded forward": lambda: forward(folded, x),
            "both": lambda: both(model, x),
            "folded both": lambda: both(folded, x),
        },
        rounds,
    )
    each = {name: 1000 * statistics.median(found) / len(x) for name, found in timed.items()}
    pairs = (("forward", "both"), ("folded forward", "folded both"))
    first, second = (Passes(each[one], each[two] - each[one]) for one, two in pairs)
    return first, second


def gflops(model: nn.Module, x: Tensor) -> float:
    """Billions of floating-point operations of a forward pass; attention counts only in its plain form."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(x)
    return counter.get_total_flops() / 1e9 / len(x)


def in_products(model: Classifier, x: Tensor) -> float:
    """The share of a forward pass that is spent in convolutions and matrix products, attention included."""
    forward(model, x)
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        started = time.perf_counter()
        for _ in range(5):
            forward(model, x)
        elapsed = time.perf_counter() - started
    spent = {event.key: event.self_cpu_time_total for event in watched.key_averages()}
    return sum(each for key, each in spent.items() if any(one in key for one in PRODUCTS)) / 1e6 / elapsed


def tests_in_fast(prepared: Classifier, x: Tensor, y: Tensor, threat: Threat, each: Passes) -> float:
    """The share of the passes of `fast`, weighted by the time of each, that test for masked gradients."""
    result = fast().run(prepared, x, y, threat=threat, seed=0)
    first, *_ = (stage.attack for stage in result.stages[1:])
    tested = [place for place, word in enumerate(result.outcome) if word not in ("misclassified", first)]
    state = AttackState(prepared, x[tested], y[tested], threat=threat, seed=0, sample_ids=torch.tensor(tested))
    state.clean_logits()
    masked_gradients(state)
    spent = Passes(int(state.forwards.sum()) - len(tested), int(state.backwards.sum())).times(each)
    spent += sum(
        Passes(stage.forwards, stage.backwards).times(each) for stage in result.stages if stage.attack.startswith(TESTS)
    )
    return spent / Passes(int(result.forwards.sum()), int(result.backwards.sum())).times(each)


@torch.no_grad()
def forward(model: Classifier, x: Tensor) -> None:
    model(x)


def both(model: Classifier, x: Tensor) -> None:
    x = x.clone().requires_grad_()
    torch.autograd.grad(model(x).sum(), x)


def seconds(timed: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each, one after the other in every round, after one round to warm up."""
    found: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(rounds + 1):
        for name, run in timed.items():
            started = time.process_time()
            run()
            if number:
                found[name].append(time.process_time() - started)
    return found


if __name__ == "__main__":
    main()
