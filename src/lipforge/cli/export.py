"""`lipforge export`: a model and its recipe as one file for another runtime."""

from typing import Annotated, cast

from typer import Option

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import check_out, note, printed, say, say_wrote, show_table

FORMAT = Option("--format", help="onnx, pt2 (torch.export) or safetensors (weights and recipe); the suffix of --out.")


@options.command(data="cifar10:test", limit=128)
def export(
    models: options.ModelOptions,
    data: options.DataOptions,
    recipe: options.RecipeOptions,
    out: Annotated[str, Option(help="The file: it ends in .onnx, .pt2 or .safetensors.")] = "model.onnx",
    form: Annotated[str | None, FORMAT] = None,
    opset: Annotated[int | None, Option(help="ONNX: the opset, 18 to 23; 20 by default.")] = None,
    no_check: Annotated[bool, Option("--no-check", help="Write the file without running it beside the model.")] = False,
    batch_size: options.BatchSize = 32,
    json: options.Json = False,
) -> None:
    """Write a model with its recipe as one file, after running it beside the model on real images.

    The file takes "images" (N, C, H, W) in [0, 1] and gives "logits" (N, K), for any N.

    [bold]Examples[/]

    lipforge export cifar10-resnet --recipe recipe.json --out model.onnx

    lipforge export cifar10-resnet --recipe recipe.json --format pt2 --out model.pt2 --data cifar10-sample
    """
    from lipforge.deployment.formats import Format

    check_out(out)
    images, model = data.open(), models.load(options.pick_device(models.device))
    recipe.apply_(model)
    done = lf.export(
        model,
        out,
        images=images,
        format=cast(Format | None, form),
        opset=opset,
        check=not no_check,
        model_name=models.model,
        batch_size=batch_size,
    )
    if done.parity is None:
        note("the file was not run beside the model, and says so in its metadata (checked: false)")
    if not printed(json, done):
        _report(done, images.name)


def _report(done: "lf.ExportResult", data: str) -> None:
    changed = ", ".join(filter(None, (done.mask, done.tta))) or "as it was trained"
    fused = f"{done.masks_fused} of {done.sites} masks"
    opset = f" opset {done.opset}" if done.opset else ""
    columns = ["model", "changed by", "file", ">bytes", "fused", ">channels removed"]
    row = [done.model_name, changed, f"{done.file_format}{opset}", f"{done.size:,}", fused, str(done.channels_removed)]
    show_table(f"{done.model_name}: exported in {done.seconds:.1f} s", columns, [row])
    if done.parity is not None:
        say(f"{data}: {done.parity}.")
    say(f"sha256 {done.digest}")
    say_wrote([done.path])
