import json
import zipfile

import onnx
import pytest
import torch

import lipforge as lf
from lipforge.errors import ExportError, InputError, LipforgeError
from lipforge.evaluation import transfer
from lipforge.runs import RunDir
from tests.nets import PlainNet, ResidualNet, seeded

THREAT = lf.Threat("linf", 8 / 255)
KINDS = ["onnx", "pt2", "safetensors"]


def labelled(shipped):
    with torch.no_grad():
        return shipped.x, shipped.model(shipped.x).argmax(dim=1)


def test_square_judges_a_file_and_a_run_knows_it_by_its_digest(shipped, tmp_path):
    run, square = RunDir.open(tmp_path / "run"), lf.Square(queries=5)
    loaded = lf.load_exported(shipped.path("onnx"))
    found = lf.evaluate(loaded, labelled(shipped), square, THREAT, run=run)
    again = lf.evaluate(lf.load_exported(shipped.path("onnx")), labelled(shipped), square, THREAT, run=run)
    assert (found.count, found.outcome) == (8, again.outcome)
    with pytest.raises(LipforgeError, match="model"):
        lf.evaluate(lf.load_exported(shipped.path("pt2")), labelled(shipped), square, THREAT, run=run)
    assert loaded.digest == shipped.results["onnx"].digest
    moved = tmp_path / "elsewhere.onnx"
    moved.write_bytes(shipped.path("onnx").read_bytes())
    assert lf.evaluate(lf.load_exported(moved), labelled(shipped), square, THREAT, run=run).outcome == found.outcome


def test_an_onnx_file_gives_no_gradient_and_the_error_says_what_to_do(shipped):
    with pytest.raises(LipforgeError, match=r"the model gives no gradient .* attack it without one"):
        lf.evaluate(lf.load_exported(shipped.path("onnx")), labelled(shipped), lf.PGD(steps=2), THREAT)


def test_with_its_source_a_file_keeps_its_logits_and_has_the_gradient_of_the_source(shipped):
    loaded, alone = lf.load_exported(shipped.path("onnx"), shipped.model), lf.load_exported(shipped.path("onnx"))
    x, own = shipped.x.clone().requires_grad_(), shipped.x.clone().requires_grad_()
    logits, expected = loaded(x), shipped.model(own)
    assert torch.equal(logits, alone(shipped.x))
    logits.logsumexp(dim=1).sum().backward()
    expected.logsumexp(dim=1).sum().backward()
    torch.testing.assert_close(x.grad, own.grad, atol=1e-5, rtol=1e-3)
    found, live = (lf.evaluate(one, labelled(shipped), lf.PGD(steps=5), THREAT) for one in (loaded, shipped.model))
    assert (found.outcome, found.backwards) == (live.outcome, live.backwards)


@pytest.mark.parametrize("kind", ["pt2", "safetensors"])
def test_a_file_that_torch_runs_has_gradients_of_its_own(shipped, kind):
    loaded = lf.load_exported(shipped.path(kind), shipped.model if kind == "safetensors" else None)
    white = lf.evaluate(loaded, labelled(shipped), lf.PGD(steps=5), THREAT)
    assert white.outcome == lf.evaluate(shipped.model, labelled(shipped), lf.PGD(steps=5), THREAT).outcome


def test_adversarial_images_transfer_from_the_source_to_the_file(shipped):
    loaded = lf.load_exported(shipped.path("onnx"))
    found = transfer(lf.forged(shipped.model), loaded, labelled(shipped), lf.PGD(steps=5), THREAT)
    assert found.count == 8


def test_a_file_cannot_be_trained(shipped):
    loaded = lf.load_exported(shipped.path("pt2"))
    assert loaded.eval() is loaded
    with pytest.raises(InputError, match="cannot be trained"):
        loaded.train()


def test_another_source_is_refused(shipped):
    other = seeded(ResidualNet, seed=1, width=4)
    with pytest.raises(InputError, match="its weights differ"):
        lf.load_exported(shipped.path("onnx"), other)
    with pytest.raises(InputError, match=r"must have the recipe of .* applied; it has none"):
        lf.load_exported(shipped.path("onnx"), lf.plain(shipped.model))
    with pytest.raises(ExportError, match="does not fit the source"):
        lf.load_exported(shipped.path("safetensors"), seeded(PlainNet))
    with pytest.raises(InputError, match="holds weights only; give a model of the same architecture"):
        lf.load_exported(shipped.path("safetensors"))


def test_safetensors_bring_weights_and_recipe_into_a_fresh_model(shipped):
    fresh = seeded(ResidualNet, seed=1, width=4)
    loaded = lf.load_exported(shipped.path("safetensors"), fresh)
    assert torch.equal(loaded(shipped.x), shipped.model(shipped.x))
    assert not lf.forges(fresh)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><html>404</html>", b"\x08\x0a garbage", None], ids=str)
def test_what_is_no_such_file_is_one_clear_error(shipped, tmp_path, kind, content):
    path = tmp_path / f"bad.{kind}"
    path.write_bytes(shipped.path(kind).read_bytes()[:-900] if content is None else content)
    with pytest.raises(ExportError, match=rf"bad.{kind} (is|was)"):
        lf.load_exported(path, shipped.model)


def test_missing_files_and_unknown_suffixes_are_errors(tmp_path):
    with pytest.raises(InputError, match=r"no file .*m.onnx; lf.export"):
        lf.load_exported(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"ends in .onnx, .pt2 or .safetensors, got 'm.pkl'"):
        lf.load_exported(tmp_path / "m.pkl")


def test_an_onnx_file_that_reads_another_file_is_refused(shipped, tmp_path):
    proto = onnx.load(shipped.path("onnx"))
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], location="/etc/passwd")
    proto.graph.initializer[0].ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ExportError, match=r"was refused: it reads .* from another file"):
        lf.load_exported(tmp_path / "m.onnx")


def test_an_onnx_file_of_another_kind_is_refused(shipped, tmp_path):
    proto = onnx.load(shipped.path("onnx"))
    proto.graph.input[0].name = "tokens"
    for node in proto.graph.node:
        node.input[:] = ["tokens" if name == "images" else name for name in node.input]
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ExportError, match="must have the input 'images' and the output 'logits'"):
        lf.load_exported(tmp_path / "m.onnx")


def changed(path, to, change) -> None:
    """A copy of a pt2 archive whose files went through `change(name, content)`."""
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(to, "w", zipfile.ZIP_STORED) as after:
        for name in before.namelist():
            after.writestr(name, change(name, before.read(name)))


def _program(edit):
    def change(name, content):
        if not name.endswith("models/model.json"):
            return content
        program = json.loads(content)
        edit(program)
        return json.dumps(program).encode()

    return change


def _operator(program):
    program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.system"


def _reading(program):
    program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file.default"


def _nested(program):
    node = program["graph_module"]["graph"]["nodes"][0]
    node["inputs"].append({"name": "inner", "arg": {"as_graph": {"name": "g", "graph": {"nodes": []}}}, "kind": 1})


def _guard(program):
    program["guards_code"] = ["__import__('os').system('true')"]


def _expression(program):
    program["graph_module"]["graph"]["tensor_values"]["relu"]["sizes"][0] = {
        "as_expr": {"expr_str": "__import__('os').system('true')", "hint": None}
    }


def _pickled(name, content):
    return content.replace(b'"use_pickle": false', b'"use_pickle": true', 1) if "weights_config" in name else content


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_program(_operator), "the operator torch.os.system"),
        (_program(_reading), "the operator torch.ops.aten.from_file"),
        (_program(_nested), "a graph inside the graph"),
        (_program(_guard), "the guard __import__"),
        (_program(_expression), "the expression __import__"),
        (_pickled, "the pickle "),
    ],
)
def test_a_program_that_could_run_code_is_refused(shipped, tmp_path, change, what):
    changed(shipped.path("pt2"), tmp_path / "m.pt2", change)
    with pytest.raises(ExportError, match=f"was refused: it could run code when it is read, by {what}"):
        lf.load_exported(tmp_path / "m.pt2")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_files_of_one_name_is_refused(shipped, tmp_path):
    """torch reads the first and Python the last: the one that was checked may not be the one that is loaded."""
    changed(shipped.path("pt2"), tmp_path / "m.pt2", lambda name, content: content)
    with zipfile.ZipFile(tmp_path / "m.pt2", "a") as archive:
        twice = archive.namelist()[0]
        archive.writestr(twice, archive.read(twice))
    with pytest.raises(ExportError, match="two files of one name"):
        lf.load_exported(tmp_path / "m.pt2")


def test_a_tensor_of_another_file_is_found_inside_functions(shipped, tmp_path):
    proto = onnx.load(shipped.path("onnx"))
    inner = proto.functions.add(name="f", domain="d")
    value = inner.node.add(op_type="Constant", output=["c"]).attribute.add(name="value").t
    value.name, value.data_location = "secret", onnx.TensorProto.EXTERNAL
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ExportError, match="it reads 'secret' from another file"):
        lf.load_exported(tmp_path / "m.onnx")
