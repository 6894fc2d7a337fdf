"""What a forged model costs once it is deployed, relative to the plain one: eager, compiled and in onnxruntime.

    python benchmarks/deploy.py [--rounds 40] [--batch-size 32] [--threads 2]

Plain and forged take turns, so that a busy machine slows both; a ratio is the median over the rounds, of wall-clock
time with its quartiles and of CPU time. With other programs on all cores, use --threads 1 and trust the CPU time.
The last line is JSON; it is also written to benchmarks/results/deploy.json.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from forge_overhead import forward
from torch import Tensor, nn

import lipforge as lf
from lipforge.deployment.programs import fused_program
from lipforge.records import write_json

RESULTS = Path(__file__).parent / "results" / "deploy.json"
MODELS = {"cifar10-resnet": True, "wrn-16-4": False}
"""Models, and whether they have weights; the others are random."""
AIMED, TARGET = ("onnxruntime, fused", "compiled, fused"), 1.02
"""What should cost no more than that."""
WALL, CPU = ("ratio", "low", "high"), ("cpu", "cpu_low", "cpu_high")

Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one; repeatable")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    results: dict[str, object] = {"batch_size": settings.batch_size, "threads": settings.threads}
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        print("no C++ compiler: torch.compile is not measured")
    for name in settings.model or MODELS:
        rows = measure(name, settings.batch_size, settings.rounds)
        results[name] = rows
        print_table(name, settings.batch_size, settings.threads, rows)
    write_json(RESULTS, results)
    print(json.dumps(results))


def measure(name: str, batch_size: int, rounds: int) -> dict[str, Row]:
    """Forged / plain for each runtime, on images of CIFAR-10's size; Step masks of ratio 2^-6."""
    model = lf.load_model(name, pretrained=MODELS[name])
    images, _ = lf.load_data("cifar10-sample", limit=batch_size).batch(range(batch_size))
    lf.forge_(model, images, ratio=2**-6)
    plain, forged = lf.plain(model), lf.forged(model)
    base = in_onnxruntime(plain, images)
    rows = {
        "eager": compared(lambda: forward(plain, images), lambda: forward(forged, images), rounds),
        "onnxruntime, fused": compared(base, in_onnxruntime(forged, images), rounds),
        "onnxruntime, torch's exporter": compared(base, unfused(forged, images), rounds),
    }
    if shutil.which("g++") or shutil.which("clang++"):
        compiled_plain, compiled_fused = (compiled(fused_module(view, images), images) for view in (plain, forged))
        rows["compiled, fused"] = compared(compiled_plain, compiled_fused, rounds)
        rows["compiled"] = compared(compiled_plain, compiled(forged, images), rounds)
    return rows


def compared(base: Callable[[], object], other: Callable[[], object], rounds: int) -> Row:
    """Run both in turns; the median of other / base in wall-clock time with its quartiles, and in CPU time."""
    base(), other()
    wall, cpu, plain = [], [], []
    for index in range(rounds):
        order = (base, other) if index % 2 else (other, base)
        taken = {work: timed(work) for work in order}
        wall.append(taken[other][0] / taken[base][0])
        cpu.append(taken[other][1] / taken[base][1])
        plain.append(taken[base][0])
    low, median, high = (round(value, 3) for value in statistics.quantiles(wall, n=4))
    cpu_low, cpu_median, cpu_high = (round(value, 3) for value in statistics.quantiles(cpu, n=4))
    row = {"ratio": median, "low": low, "high": high, "cpu": cpu_median, "cpu_low": cpu_low, "cpu_high": cpu_high}
    return {**row, "plain_ms": round(1000 * statistics.median(plain), 2)}


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and seconds of CPU."""
    started, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - spent


def compiled(model: nn.Module, images: Tensor) -> Callable[[], object]:
    work = torch.compile(model, dynamic=False)
    return lambda: forward(work, images)


def fused_module(model: nn.Module, images: Tensor) -> nn.Module:
    """What a pt2 file holds."""
    return fused_program(model, images[:1])[0].module()


def in_onnxruntime(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """A session on an exported file; it is the exported file that is measured."""
    with tempfile.TemporaryDirectory() as folder:
        lf.export(model, Path(folder) / "m.onnx", images=images, show_progress=False)
        return session_on((Path(folder) / "m.onnx").read_bytes(), images)


def unfused(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """The peer: torch's own exporter, without anything of lipforge's."""
    program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    made = torch.onnx.export(program, (), dynamo=True, input_names=["images"], output_names=["logits"], verbose=False)
    assert made is not None
    return session_on(made.model_proto.SerializeToString(), images)


def session_on(content: bytes, images: Tensor) -> Callable[[], object]:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting would count as CPU time
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"images": images.numpy()})


def print_table(name: str, batch_size: int, threads: int, rows: dict[str, Row]) -> None:
    print(f"{name}, batch {batch_size}, {threads} threads: forged / plain, median [quartiles]")
    for what, row in rows.items():
        figures = (f"{row[key]:.3f} [{row[low]:.3f}, {row[high]:.3f}]" for key, low, high in (WALL, CPU))
        verdict = f"target {TARGET}: {'met' if row['cpu'] <= TARGET else 'MISSED'}" if what in AIMED else ""
        print(f"  {what:32s} {'   CPU time '.join(figures)}  {verdict}")


if __name__ == "__main__":
    main()
