"""Read the pickled arrays of the CIFAR archives without giving a pickle the power to run anything."""

import io
import pickle
from typing import Any

import numpy as np

from lipforge.data.base import Bytes
from lipforge.errors import DataError


def read_pickled_batch(content: bytes, name: str) -> dict[str, Any]:
    """The dict in a pickle of plain values and byte arrays (NumPy's names are met with stand-ins, never with NumPy).

    Any other global, and so any pickle that would import or call something, is refused before it is looked up.
    """
    try:
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{name} {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(
            f"{name} is not a readable pickle ({type(error).__name__}: {error}); was it cut short?"
        ) from None
    if not isinstance(batch, dict):
        raise DataError(f"{name} must hold a dict, it holds a {type(batch).__name__}")
    return {_text(key): _array(value, name) if hasattr(value, "raw") else value for key, value in batch.items()}


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        # Made anew for each file: a pickle may set attributes on what it is given.
        self._stand_ins = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        # NumPy 2 renamed numpy.core; pickles exist under both names.
        known = self._stand_ins.get((module.replace("numpy.core", "numpy._core"), name))
        if known is None:
            raise DataError(f"is refused: its pickle asks for {module}.{name}, which no image archive needs")
        return known


def _stand_ins() -> dict[tuple[str, str], Any]:
    """Harmless namesakes of what a pickled uint8 array refers to; they only keep what they are told."""

    class Kind:
        def __init__(self, code: Any = "", *_: Any) -> None:
            self.code = _text(code)

        def __setstate__(self, _: Any) -> None: ...

    class Array:
        raw: Any = b""
        shape: Any = ()
        kind: Any = None

        def __setstate__(self, state: Any) -> None:
            _, self.shape, self.kind, fortran, self.raw = state
            if fortran:
                raise DataError("holds an array in Fortran order")

    def from_buffer(raw: Any, kind: Any, shape: Any, order: Any) -> Array:
        array = Array()
        array.__setstate__((1, shape, kind, order == "F", raw))
        return array

    return {
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: Array(),
        ("numpy._core.numeric", "_frombuffer"): from_buffer,
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): Kind,
        ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
    }


def _array(stand_in: Any, name: str) -> Bytes:
    kind = getattr(stand_in.kind, "code", None)
    if kind not in ("u1", "uint8"):
        raise DataError(f"{name} must hold arrays of bytes, it holds '{kind}'")
    try:
        return np.frombuffer(stand_in.raw, np.uint8).reshape(stand_in.shape)
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{name} holds a damaged array ({error})") from None


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
