"""The three kinds of files: a model to bytes with metadata, and bytes to a function from images to logits.

Nothing in a file is run when it is read: no pickle, no external data, no expression, no operator but torch's own.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.export import ExportedProgram

from lipforge.deployment.programs import quiet
from lipforge.errors import ExportError, first_line, import_extra
from lipforge.records import most_unpacked

Format = Literal["onnx", "pt2", "safetensors"]
Metadata = dict[str, str]

INPUT, OUTPUT, BATCH, EXTRA = "images", "logits", "batch", "lipforge.json"
LARGEST_ONNX = 2**31 - 2**20
"""Bytes of weights that fit into one ONNX file: a message of protobuf is at most 2 GB."""

OPSETS, OPSET = (18, 23), 20
"""The first opset that torch's exporter writes and the last, and which one it writes unless told otherwise."""


class Encode(Protocol):
    """A model ready to be written: its bytes with this metadata in them."""

    def __call__(self, metadata: Metadata) -> bytes: ...


def onnx_encoder(program: ExportedProgram, opset: int | None) -> Encode:
    """The program as an ONNX model with the input "images", the output "logits" and the free dimension "batch"."""
    onnx = import_extra("onnx", "onnx")
    weights = sum(tensor.nbytes for tensor in (*program.state_dict.values(), *program.constants.values()))
    if weights > LARGEST_ONNX:
        raise ExportError(
            f"an ONNX file holds at most 2 GB, and the weights take {weights / 2**30:.1f} GB; "
            "use format='pt2' or 'safetensors'"
        )
    with quiet():
        made = torch.onnx.export(
            program,
            (),
            dynamo=True,
            opset_version=opset,
            input_names=[INPUT],
            output_names=[OUTPUT],
            custom_translation_table=_translations(),
            verbose=False,
        )
    assert made is not None
    proto = made.model_proto
    _forget_origin_(proto)
    return lambda metadata: _with_metadata(onnx, proto, metadata)


def _with_metadata(onnx: Any, proto: Any, metadata: Metadata) -> bytes:
    onnx.helper.set_model_props(proto, metadata)
    content: bytes = proto.SerializeToString()
    return content


def _translations() -> dict[Any, Callable[..., Any]]:
    """One ONNX operator for what torch's exporter would write as several."""
    op = import_extra("onnxscript", "onnx").opset18

    def threshold(self: Any, threshold: float, value: float) -> Any:
        if value == 0 and threshold >= 0:
            return op.ThresholdedRelu(self, alpha=threshold)
        return op.Where(op.Greater(self, threshold), self, value)

    return {torch.ops.aten.threshold.default: threshold}


def _forget_origin_(proto: Any) -> None:
    """Name the batch, and take out stack traces, which carry the paths of this machine."""
    graph = proto.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    for part in (*graph.input, *graph.output, *graph.value_info, *graph.node, *graph.initializer, *proto.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.metadata_props[:]
    del graph.value_info[:]


def pt2_encoder(program: ExportedProgram) -> Encode:
    """The program as torch.export writes it; the metadata are the extra file `lipforge.json`."""

    def encode(metadata: Metadata) -> bytes:
        buffer = io.BytesIO()
        with quiet():
            torch.export.save(program, buffer, extra_files={EXTRA: json.dumps(metadata)})
        return buffer.getvalue()

    return encode


def safetensors_encoder(plain: nn.Module) -> Encode:
    """The weights of the model without its changes, which the recipe in the metadata brings back."""
    # Clones: tied weights share memory, which the format has no word for.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in plain.state_dict().items()}
    # One entry: several would come in another order each time, and so would the digest of the file.
    return lambda metadata: save_tensors(tensors, metadata={"lipforge": json.dumps(metadata)})


def read_onnx(content: bytes, name: str) -> tuple[Metadata, Callable[[Tensor], Tensor]]:
    """The metadata of an ONNX model, and the model in onnxruntime on the CPU; it must be a classifier in one file."""
    onnx, runtime = import_extra("onnx", "onnx"), import_extra("onnxruntime", "onnx")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
        _check_inside(onnx, proto, name)
        settings = runtime.SessionOptions()
        settings.intra_op_num_threads, settings.log_severity_level = torch.get_num_threads(), 4
        session = runtime.InferenceSession(content, settings, providers=["CPUExecutionProvider"], enable_fallback=0)
    except ExportError:
        raise
    except Exception as error:  # protobuf and onnxruntime have errors of their own
        raise ExportError(f"{name} is not an ONNX model that onnxruntime reads: {first_line(error)}") from None
    inputs, outputs = ([part.name for part in parts] for parts in (session.get_inputs(), session.get_outputs()))
    if inputs != [INPUT] or outputs != [OUTPUT]:
        raise ExportError(
            f"{name} must have the input '{INPUT}' and the output '{OUTPUT}', got {inputs} and {outputs}; "
            "lf.export writes such files"
        )

    def run(x: Tensor) -> Tensor:
        images = x.detach().to("cpu", torch.float32).contiguous().numpy()
        found = session.run([OUTPUT], {INPUT: images})[0]
        return torch.from_numpy(np.asarray(found)).to(x.device)

    return {prop.key: prop.value for prop in proto.metadata_props}, run


def _check_inside(onnx: Any, proto: Any, name: str) -> None:
    if not proto.graph.node:
        raise ExportError(f"{name} is not an ONNX model: it has no graph; was it cut short?")
    outside = [part.name for part in _stored(proto, onnx.TensorProto) if part.external_data or part.data_location]
    if outside:
        raise ExportError(f"{name} was refused: it reads '{outside[0]}' from another file; a model must be one file")


def _stored(message: Any, kind: type[Any]) -> Iterator[Any]:
    """Every tensor in a message of protobuf, wherever it is: in graphs, attributes, functions and sparse tensors."""
    if isinstance(message, kind):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                if hasattr(part, "ListFields"):
                    yield from _stored(part, kind)


def read_pt2(content: bytes, name: str) -> tuple[Metadata, nn.Module]:
    """The metadata of a program, and its module; a file that could run code when it is read is refused."""
    extra, checked = {EXTRA: ""}, without_code(content, name)
    try:
        with quiet():
            module = torch.export.load(io.BytesIO(checked), extra_files=extra).module()
    except Exception as error:  # a damaged file raises whatever its broken parts lead to
        raise ExportError(f"{name} is not a program that torch.export reads: {first_line(error)}") from None
    for part in module.modules():
        part.training = False  # eval() is refused by exported modules, which have one mode only
    return _as_metadata(extra[EXTRA], name), module


def without_code(content: bytes, name: str) -> bytes:
    """A program's archive, written anew from what was checked: an error if torch.export.load would unpickle, evaluate
    or call anything but tensors and torch's own operators.

    torch unpickles weights that say so, evaluates the expressions of sizes and guards as Python, and resolves any name
    below `torch` as an operator, `torch.os.system` among them. What `lf.export` writes needs none of that. Of two
    entries with one name, torch may read another one than Python does: hence the new archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.namelist()
            if sum(entry.file_size for entry in archive.infolist()) > most_unpacked(len(content)):
                raise ValueError(f"it unpacks to more than {most_unpacked(len(content)) >> 20} MB")
            files = {entry.partition("/")[2]: archive.read(entry) for entry in entries}
        if len(files) < len(entries) or len({entry.partition("/")[0] for entry in entries}) != 1:
            raise ValueError("two files of one name, or several folders")
        program = json.loads(files["models/model.json"])
        payloads = [json.loads(files[f"data/{kind}/model_{kind}_config.json"]) for kind in ("weights", "constants")]
        targets = _under(program, "target")
        complaints = [
            *(f"the file {file}" for file in files if not PT2_FILES.fullmatch(file)),
            *(f"the pickle {key}" for part in payloads for key, it in part["config"].items() if it["use_pickle"]),
            *(f"the operator {target}" for target in targets if target and not TARGETS.fullmatch(str(target))),
            *("a graph inside the graph" for graph in _under(program, "as_graph") if graph),
            *(f"the expression {text}" for text in _under(program, "expr_str") if not EXPRESSION.fullmatch(str(text))),
            *(f"the guard {text}" for text in program.get("guards_code", [])),
            *("the metadata of a node" for node in program["graph_module"]["graph"]["nodes"] if node["metadata"]),
        ]
        if files["data/sample_inputs/model.pt"]:
            torch.load(io.BytesIO(files["data/sample_inputs/model.pt"]), weights_only=True)
    except Exception as error:  # any part may be damaged
        raise ExportError(f"{name} is damaged, or no program of lf.export: {first_line(error)}") from None
    if complaints:
        raise ExportError(f"{name} was refused: it could run code when it is read, by {complaints[0][:100]}")
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for file, value in files.items():
            archive.writestr(f"{entries[0].partition('/')[0]}/{file}", value)
    return written.getvalue()


PT2_FILES = re.compile(
    r"data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)|"
    r"models/model\.json|data/sample_inputs/model\.pt|extra/lipforge\.json|archive_format|archive_version|byteorder|"
    r"\.data/(version|serialization_id)|\.format_version|version"
)
TARGETS = re.compile(
    r"torch\.ops\.aten\.(?!from_file\b)\w+\.\w+|_operator\.(getitem|add|sub|mul|floordiv|mod|eq|ne|le|ge|lt|gt|neg)"
)
# Sympy's printed form: sums and products of symbols such as Symbol('s34', positive=True, integer=True).
_ATOM = r"(Symbol\('[su]\d+'(, \w+=(True|False))*\)|Integer\(-?\d+\)|-?\d+|Add|Mul|Pow|FloorDiv|Mod|[(), ])"
EXPRESSION = re.compile(rf"{_ATOM}+")


def _under(value: Any, key: str) -> list[Any]:
    """Everything that stands under a key, anywhere in a program: operators, graphs, and the expressions that torch
    hands to sympy and so to Python's eval."""
    if isinstance(value, dict):
        own = [value[key]] if key in value else []
        return own + [found for part in value.values() for found in _under(part, key)]
    return [found for part in value for found in _under(part, key)] if isinstance(value, list) else []


def read_safetensors(content: bytes, name: str) -> tuple[Metadata, dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file."""
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return _as_metadata(header.get("__metadata__", {}).get("lipforge", ""), name), load_tensors(content)
    except (SafetensorError, ValueError, AttributeError) as error:
        raise ExportError(f"{name} is a damaged or cut short safetensors file: {first_line(error)}") from None


def _as_metadata(text: str, name: str) -> Metadata:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        raise ExportError(f"{name} has metadata that are no JSON") from None
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
