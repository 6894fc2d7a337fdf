"""`lipforge sites`: where forged functions would go."""

from lipforge.cli import options
from lipforge.cli.output import note, print_json, results, table
from lipforge.forge import Survey, find_sites
from lipforge.forge.sites import DEFAULT_RULES
from lipforge.models import carried_masks, load_model


def sites(
    model: options.Model,
    rule: options.Rules = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
) -> None:
    """Show where forged functions would go, and why not elsewhere. Nothing is changed.

    The architecture decides, so no weights are needed.

    [bold]Examples[/]

    lipforge sites robustbench:cifar10/Linf/Wu2020Adversarial_extra

    lipforge sites timm:vit_base_patch16_224 --rule mlp_linears --rule attention_projections

    lipforge sites my_model.py:build --exclude 'layer4.*' --json
    """
    loaded = load_model(model, pretrained=False)
    survey = find_sites(loaded, rules=rule or DEFAULT_RULES, include=include or (), exclude=exclude or ())
    masks = carried_masks(loaded)
    if json:
        print_json({"model": model, **vars(survey), "carried_masks": masks})
        return
    _show(model, survey)
    if masks:
        note(f"this model carries {len(masks)} MeanSparse masks already, such as '{masks[0]}'; forging adds more")


def _show(model: str, survey: Survey) -> None:
    columns = {"#": "right", "site": "left", "layer": "left", "features": "right", "input": "left", "rule": "left"}
    rows = [
        [str(number), site.name, site.layer, str(site.in_features), "x".join(map(str, site.input_shape[1:])), site.rule]
        for number, site in enumerate(survey, start=1)
    ]
    results.print(table(f"{model}: {len(survey)} sites", columns, rows))
    results.print(survey.reason)
    reasons: dict[str, list[str]] = {}
    for layer in survey.skipped:
        reasons.setdefault(layer.reason, []).append(layer.name)
    if reasons:
        results.print("\nnot sites:")
    for reason, names in reasons.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        results.print(f"  {reason}: {shown}", soft_wrap=True)
