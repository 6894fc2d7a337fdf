"""`lipforge sites`: where forged functions would go."""

from typing import TYPE_CHECKING

import lipforge as lf
from lipforge.cli import options
from lipforge.cli.output import note, printed, results, say, show_table

if TYPE_CHECKING:
    from lipforge.forge import Survey


@options.command()
def sites(model: options.Model, where: options.SiteOptions, json: options.Json = False) -> None:
    """Show where forged functions would go, and why not elsewhere. Nothing is changed.

    The architecture decides, so no weights are needed.

    [bold]Examples[/]

    lipforge sites robustbench:cifar10/Linf/Wu2020Adversarial_extra

    lipforge sites timm:vit_base_patch16_224 --rule mlp_linears --rule attention_projections

    lipforge sites my_model.py:build --exclude 'layer4.*' --json
    """
    from lipforge.models import carried_masks

    loaded = lf.load_model(model, pretrained=False)
    survey, masks = lf.find_sites(loaded, **where.chosen), carried_masks(loaded)
    if not printed(json, {"kind": "sites", "model": model, **vars(survey), "carried_masks": masks}):
        _show(model, survey)
        note_masks(masks)


def note_masks(masks: list[str]) -> None:
    if masks:
        note(f"this model carries {len(masks)} MeanSparse masks already, such as '{masks[0]}'; forging adds more")


def _show(model: str, survey: "Survey") -> None:
    rows = [
        [str(number), site.name, site.layer, str(site.in_features), "x".join(map(str, site.input_shape[1:])), site.rule]
        for number, site in enumerate(survey, start=1)
    ]
    show_table(f"{model}: {len(survey)} sites", [">#", "site", "layer", ">features", "input", "rule"], rows)
    results.print(survey.reason)
    reasons: dict[str, list[str]] = {}
    for layer in survey.skipped:
        reasons.setdefault(layer.reason, []).append(layer.name)
    if reasons:
        results.print("\nnot sites:")
    for reason, names in reasons.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        say(f"  {reason}: {shown}")
