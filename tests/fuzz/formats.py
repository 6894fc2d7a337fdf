"""Every file that lipforge reads: a small whole one of each kind, and the call that reads it."""

import copy
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import lipforge as lf
import lipforge.paper.tables
from lipforge.batching import as_data
from lipforge.cli.config import read_config
from lipforge.cli.main import _commands, app
from lipforge.data.fetch import decoded, read_archive
from lipforge.data.folder import FolderOptions, open_folder
from lipforge.data.known import Layout
from lipforge.models.weights import load_weights_
from lipforge.paper.tables import read_table
from lipforge.ranks import Rank
from lipforge.results import CleanResult
from lipforge.runs import RunDir, Task
from lipforge.training.config import TrainConfig
from lipforge.training.session import open_session, save
from tests.data.made import Toy, idx_file, photo

NONE = FolderOptions(resize=None, crop=None, workers=0)
TASK: dict[str, Any] = {"config": {"attack": "pgd", "threat": {"norm": "linf", "eps": 0.03}}, "count": 4, "size": 2}


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name in a folder, what writes a whole one there, and what reads it."""

    file: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    slow: bool = False


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(self.stem(x).relu()).mean(dim=(2, 3)))


@cache
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def labels(count: int = 6) -> Tensor:
    return torch.arange(count) % 3


def write_recipe(path: Path) -> None:
    model = Net().eval()
    lf.forge_(model, images())
    lf.set_tta_(model, "mirror")
    lf.save_recipe(path, model)


def write_fold(path: Path) -> None:
    model = Net().eval()
    lf.forge_(model, images(), ratio=0.5)
    fold = lf.fold_(model, lf.count_zeros(model, images()), frequency=0.1)
    fold.save(path)


def task_in(path: Path) -> Task:
    return RunDir(path.parents[2]).task(path.parent.name, **TASK)


def write_config(path: Path) -> None:
    task_in(path)


def write_shard(path: Path) -> None:
    task_in(path).write(0, {"outcome": ["robust", "pgd"], "seconds": 0.5})


def read_shard(path: Path) -> object:
    """As `work` does: a damaged shard is set aside."""
    with task_in(path).claim(0):
        return list(task_in(path).news({}))


def write_result(path: Path) -> None:
    RunDir(path.parents[1]).write_result(path.stem, CleanResult(10, 7, 0.7, (0.35, 0.93)))


def write_environment(path: Path) -> None:
    RunDir.open(path.parent)


def write_training(path: Path) -> None:
    save(session(path.parent))


def session(folder: Path) -> Any:
    config = TrainConfig(epochs=1, batch_size=2, holdout=2)
    return open_session(copy.deepcopy(net()), as_data((images(), labels())), config, folder, Rank())


def write_idx(path: Path) -> None:
    path.write_bytes(idx_file((255 * images()[:, 0]).byte().numpy()))
    (path.parent / "t10k-labels-idx1-ubyte").write_bytes(idx_file(labels().numpy()))


def write_gz(path: Path) -> None:
    write_idx(path.parent / "t10k-images-idx3-ubyte")
    content = (path.parent / "t10k-images-idx3-ubyte").read_bytes()
    (path.parent / "t10k-images-idx3-ubyte").unlink()
    path.write_bytes(gzip.compress(content))


def write_npy(path: Path) -> None:
    np.save(path, (255 * images()).byte().numpy())
    np.save(path.with_name("labels.npy"), labels().numpy())


@cache
def toy() -> Toy:
    return Toy()


def read_toy(path: Path) -> object:
    layout: Layout = next(one for one in toy().known.layouts if one.archive == path.name)
    files = read_archive(path, replace(layout, md5="", size=0))
    return [decoded(layout, one, str(path)) for one in files.values()]


def toy_archive(number: int) -> Kind:
    layout, content = toy().known.layouts[number], [toy().python_archive, toy().npm_archive]
    return Kind(layout.archive, lambda path: path.write_bytes(content[number]), read_toy)


def write_image(path: Path) -> None:
    Image.fromarray(photo(1, 16, 16)).save(path)


def read_image_folder(path: Path) -> object:
    return open_folder(path.parents[1], NONE).batch([0])


def write_list(path: Path) -> None:
    (path.parent / "folder" / "ant").mkdir(parents=True)
    write_image(path.parent / "folder" / "ant" / "a.png")
    path.write_text("ant/a.png\n")


def write_table(path: Path) -> None:
    """The first lines of the paper's tables."""
    whole = Path(lipforge.paper.tables.__file__).with_name("tables.csv").read_text(encoding="utf-8")
    path.write_text("\n".join(whole.splitlines()[:4]) + "\n", encoding="utf-8")


def write_onnx(path: Path) -> None:
    from onnx import TensorProto, helper

    shapes: dict[str, list[Any]] = {"images": ["n", 1, 8, 8], "logits": ["n", 1]}
    made = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["logits"]),
    ]
    graph = helper.make_graph(nodes, "g", [made["images"]], [made["logits"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"recipe": json.dumps({"a": 1}), "weights": "0" * 64})
    path.write_bytes(model.SerializeToString())


def write_hub(path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as HubImage

    columns = Features({"image": HubImage(), "label": ClassLabel(names=["a", "b"])})
    rows = {"image": [Image.fromarray(photo(seed, 8, 8)) for seed in range(2)], "label": [0, 1]}
    Dataset.from_dict(rows, features=columns).save_to_disk(str(path.parent))


def exported(path: Path) -> object:
    return lf.load_exported(path, None if path.suffix != ".safetensors" else net())


def data(kind: str) -> Callable[[Path], object]:
    return lambda path: lf.load_data(f"{kind}:{path.parent if kind in ('idx', 'npy', 'hub') else path}")[0]


def write_report(path: Path) -> object:
    return lf.write_report(path.parents[1])


def checkpoint(**settings: bool) -> Callable[[Path], object]:
    return lambda path: torch.save({"model": net().state_dict(), "epoch": 3}, path, **settings)


def weights(path: Path) -> None:
    load_weights_(Net(), path)


def commands() -> dict[str, Any]:
    from typer.main import get_command

    return _commands(get_command(app))


KINDS = {
    "recipe": Kind("recipe.json", write_recipe, lf.load_recipe),
    "fold": Kind("fold.safetensors", write_fold, lf.load_fold),
    "task config": Kind("run/shards/task/config.json", write_config, task_in),
    "shard": Kind("run/shards/task/0000.json", write_shard, read_shard),
    "result": Kind("run/results/clean.json", write_result, lambda path: RunDir(path.parents[1]).read_result("clean")),
    "result in a report": Kind("run/results/clean.json", write_result, write_report),
    "environment": Kind("run/environment.json", write_environment, lambda path: RunDir.open(path.parent)),
    "training config": Kind("run/config.json", write_training, lambda path: session(path.parent)),
    "training state": Kind("run/checkpoint.pt", write_training, lambda path: session(path.parent)),
    "safetensors": Kind("net.safetensors", lambda path: save_file(net().state_dict(), path), weights),
    "torch checkpoint": Kind("net.pt", checkpoint(), weights),
    "old torch checkpoint": Kind("net.pth", checkpoint(_use_new_zipfile_serialization=False), weights),
    "npz": Kind("images.npz", lambda path: np.savez(path, images=images().numpy(), labels=labels()), data("npz")),
    "compressed npz": Kind(
        "small.npz", lambda path: np.savez_compressed(path, x=images().numpy(), y=labels()), data("npz")
    ),
    "npy": Kind("images.npy", write_npy, data("npy")),
    "idx": Kind("t10k-images-idx3-ubyte", write_idx, data("idx")),
    "gzipped idx": Kind("t10k-images-idx3-ubyte.gz", write_gz, data("idx")),
    "CIFAR archive": toy_archive(0),
    "archive of PNGs": toy_archive(1),
    "PNG in a folder": Kind("images/ant/a.png", write_image, read_image_folder),
    "JPEG in a folder": Kind("images/ant/a.jpg", write_image, read_image_folder),
    "list of files": Kind(
        "files.txt", write_list, lambda path: open_folder(path.parent / "folder", replace(NONE, files=str(path)))
    ),
    "CSV table": Kind("table.csv", write_table, read_table),
    "TOML config": Kind(
        "exp.toml",
        lambda path: path.write_text('seed = 3\n[evaluate]\nattack = "pgd:steps=5"\nlimit = 20\n'),
        lambda path: read_config(str(path), commands()),
    ),
    "ONNX model": Kind("model.onnx", write_onnx, exported),
    "exported safetensors": Kind(
        "model.safetensors", lambda path: lf.export(net(), path, images=images(), model_name="tiny"), exported
    ),
    "exported program": Kind(
        "model.pt2", lambda path: lf.export(net(), path, images=images(), model_name="tiny"), exported, slow=True
    ),
    "hub info": Kind("hub/dataset_info.json", write_hub, data("hub"), slow=True),
    "hub images": Kind("hub/data-00000-of-00001.arrow", write_hub, data("hub"), slow=True),
}
"""By the name in the table of docs/reliability.md; slow ones are left out of CI."""
