"""One forward pass recorded from outside: every operator, the memory it read, and what it returned."""

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

Watcher = Callable[[str, tuple[int, ...], Any], None]
"""Called with the name of an operator, the distinct storages it read, and its output."""


def record(model: nn.Module, image: Tensor, watcher: Watcher, hooks: Iterable[RemovableHandle] = ()) -> None:
    """Run `model` on `image` without gradients, calling `watcher` after each operator; then remove the `hooks`."""
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook)
        with torch.no_grad(), eager(), _Recorder(watcher):
            model(image)


def eager() -> AbstractContextManager[object]:
    """No compiled code runs inside: it would not call hooks that were added after it was compiled."""
    compiling = "torch._dynamo" in sys.modules  # otherwise nothing was ever compiled, and the import takes seconds
    return torch.compiler.set_stance("force_eager") if compiling else nullcontext()


def storage(tensor: Tensor) -> int:
    """The identity of the memory behind a tensor: writing into a view counts as writing into the whole."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have no storage, nor views
        return id(tensor)


def tensors(values: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    def __init__(self, watcher: Watcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._watcher = watcher
        self._alive: list[Tensor] = []  # a freed storage could be reused under the same address

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch imports its compiler at the first operator, which takes seconds, to say that it must not
        compile this class; `record` sees to that."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = tuple(dict.fromkeys(map(storage, tensors((args, kwargs)))))
        output = func(*args, **(kwargs or {}))
        self._alive += tensors(output)
        self._watcher(func.overloadpacket.__name__, read, output)
        return output
