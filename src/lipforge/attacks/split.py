"""A classifier that shares each batch among threads, one copy of the model for each.

On a CPU torch spreads every operator over its threads and waits for the slowest each time. Here each thread takes its
share of the images through the whole model, forward and backward, and waits once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from lipforge.types import Classifier

LEAST = 2
"""Images that are worth a thread."""

R = TypeVar("R")


class Split:
    """The same classifier several times over: a batch is shared among `copies`, which run side by side.

    The copies must not share state that changes. torch's number of threads, here and in new threads, stays as it was.
    """

    def __init__(self, copies: Sequence[Classifier]) -> None:
        self.copies = tuple(copies)
        threads = torch.get_num_threads()
        each = max(threads // len(self.copies), 1)
        self._pool = ThreadPoolExecutor(len(self.copies), "split", _begin, (each,))
        # All threads start now, at a barrier so that none takes the task of two: each sets its own number of threads,
        # and with it the number that later threads begin with, which the last line puts back.
        barrier = threading.Barrier(len(self.copies))
        list(self._pool.map(lambda _: barrier.wait(), self.copies))
        torch.set_num_threads(threads)

    def __call__(self, x: Tensor) -> Tensor:
        count = min(len(self.copies), len(x) // LEAST)
        if count < 2:
            return self.copies[0](x)
        parts = x.detach().tensor_split(count)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return torch.cat(self._map(_forward, parts))
        leaves = [part.clone().requires_grad_() for part in parts]
        logits = self._map(lambda copy, leaf: copy(leaf), leaves)
        if not all(part.requires_grad for part in logits):
            return torch.cat(logits).detach()
        joined: Tensor = _Joined.apply(x, self, leaves, logits)  # type: ignore[no-untyped-call]  # torch's own
        return joined

    def backward(self, leaves: Sequence[Tensor], logits: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of each leaf; the graph stays, because FAB asks for several gradients of one forward."""

        def one(_: Classifier, triple: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            leaf, out, gradient = triple
            return torch.autograd.grad(out, leaf, gradient, retain_graph=True)[0]

        return self._map(one, list(zip(leaves, logits, gradients, strict=True)))

    def _map(self, work: Callable[[Classifier, Any], R], parts: Sequence[Any]) -> list[R]:
        tasks = [self._pool.submit(work, copy, part) for copy, part in zip(self.copies, parts, strict=False)]
        return [task.result() for task in tasks]


@contextmanager
def alone(classifier: Classifier) -> Iterator[None]:
    """While a `Split` is at work, torch keeps the calling thread to itself: its helpers would wait by spinning.

    They would do so on the very cores that the copies need, for operators that are too small to share.
    """
    threads = torch.get_num_threads()
    if isinstance(classifier, Split):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if isinstance(classifier, Split):
            torch.set_num_threads(threads)


class _Joined(torch.autograd.Function):
    """The logits of all parts as one tensor, whose backward runs in the threads again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, split: Split, leaves: list[Tensor], logits: list[Tensor]) -> Tensor:
        ctx.split, ctx.leaves, ctx.logits = split, leaves, logits
        return torch.cat([part.detach() for part in logits])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        parts = torch.split(gradients[0], [len(part) for part in ctx.logits])
        return torch.cat(ctx.split.backward(ctx.leaves, ctx.logits, parts)), None, None, None


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.get_num_threads()  # a thread takes over the number set last anywhere when it first asks: so it asks now


def _forward(classifier: Classifier, part: Tensor) -> Tensor:
    with torch.no_grad():  # the grad mode belongs to the thread
        return classifier(part)
