"""What an evaluation would cost, for people to read."""

from lipforge.cli.output import print_json, results
from lipforge.evaluation.estimate import Estimate
from lipforge.progress import duration
from lipforge.runs import record


def show_estimates(found: list[Estimate], json: bool) -> None:
    """Print estimates, one paragraph each, or as JSON."""
    if json:
        print_json(record(found[0]) if len(found) == 1 else [record(one) for one in found])
        return
    for one in found:
        _show_estimate(one)


def _show_estimate(one: Estimate) -> None:
    low, high = (duration(bound) for bound in one.interval)
    results.print(f"{one.model} ({one.label}), {one.attack}, {one.threat}, n={one.count}", soft_wrap=True)
    results.print(
        f"  {one.forwards:,.0f} forward and {one.backwards:,.0f} backward passes per image (probe of {one.probe}); "
        f"{one.forward_rate:,.1f} images/s forward, {one.gradient_rate:,.1f} with gradient",
        soft_wrap=True,
    )
    shared = f", {duration(one.wall_seconds)} on {one.devices} devices" if one.devices > 1 else ""
    results.print(f"  about {duration(one.device_seconds)} of one device [{low} .. {high}]{shared}", soft_wrap=True)
    results.print("  assuming that " + "; ".join(one.assumptions), soft_wrap=True)
