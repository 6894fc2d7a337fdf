"""A classifier as an exported program: a graph of operators with a free batch size, fused, and without its origin."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lipforge.deployment.fused import Fused, fuse_
from lipforge.errors import ModelError
from lipforge.outputs import logits_in


class Logits(nn.Module):
    """`images` (N, C, H, W) to logits (N, K), whatever the model wraps them in; the argument's name is the file's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return logits_in(self.model(images))


def fused_program(model: nn.Module, image: Tensor) -> tuple[ExportedProgram, Fused]:
    """The program of `model` on images like `image` (1, C, H, W), with masks and zero weight columns folded away."""
    program = traced(Logits(model).eval(), image)
    module = program.module()
    done = fuse_(module)
    if done != Fused():
        program = traced(module, image)
    _forget_origin_(program)
    return program, done


def traced(model: nn.Module, image: Tensor) -> ExportedProgram:
    """The exported program of `model`; an error that says what torch.export stumbled over."""
    # Two images: torch.export takes a batch of one for a constant.
    example, errors = image.repeat(2, 1, 1, 1), []
    for strict in (False, True):  # the strict way also follows len(images), and fails where the other does not
        try:
            with quiet(), torch.no_grad():
                shapes = ({0: Dim("batch", min=1)},)
                return torch.export.export(model, (example,), dynamic_shapes=shapes, strict=strict)
        except Exception as error:  # whatever the model's code raises under tracing
            errors.append(error)
    raise ModelError(
        f"torch.export cannot turn the model into a graph with a free batch size: {_reason(errors[0])}; a forward pass "
        "must not branch on the values or the number of its images. format='safetensors' needs no graph"
    ) from errors[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and the log of torch's exporters, which are about their own code."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "torch._dynamo")
    ]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _forget_origin_(program: ExportedProgram) -> None:
    """Take out stack traces and names of classes: they would carry the paths of this machine into the file."""
    for node in program.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key in ("val", "tensor_meta")}


def _reason(error: Exception) -> str:
    """What the error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}" if lines else type(error).__name__
