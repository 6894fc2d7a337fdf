import time
import weakref
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lipforge.errors import CalibrationError, InputError, ModelError, SiteError
from lipforge.forge.calibrate import calibrate_, forge_
from lipforge.forge.insert import forges, insert_, set_mode_
from lipforge.forge.masks import MeanCentred
from lipforge.forge.sites import find_sites
from lipforge.ranks import leave
from tests.nets import ResidualNet, ReusingNet, Transformer, images, seeded


def inserted(build=ResidualNet, mask=None, **arguments):
    model = seeded(build, **arguments)
    insert_(model, find_sites(model), mask=mask, ratio=2**-4)
    return model


def inputs_by_hand(model: nn.Module, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    """What really goes into each layer of an unforged model, by plain hooks."""
    seen: dict[str, list[torch.Tensor]] = {}
    handles = [
        module.register_forward_pre_hook(lambda m, args, name=name: seen.setdefault(name, []).append(args[0].clone()))
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("build", [ResidualNet, ReusingNet, Transformer])
def test_the_bound_is_the_largest_input_of_the_unforged_model(build):
    model, x = inserted(build), images(32)
    calibrate_(model, x, batch_size=32)
    seen = inputs_by_hand(seeded(build), x)
    for name, forge in forges(model).items():
        assert forge.bound.item() == max(call.abs().max().item() for call in seen[name])


def test_in_place_relus_do_not_disturb_the_bound():
    bounds = [calibrate_(inserted(inplace=inplace), images(32)).bounds for inplace in (False, True)]
    assert bounds[0] == bounds[1]


def test_bounds_per_channel():
    model, x = inserted(), images(32)
    calibrate_(model, x, per_channel=True, batch_size=32)
    seen = inputs_by_hand(seeded(ResidualNet), x)
    for name, forge in forges(model).items():
        assert torch.equal(forge.bound, seen[name][0].abs().amax(dim=(0, 2, 3)))


def test_bounds_per_channel_of_tokens():
    model, x = inserted(Transformer), images(16)
    calibrate_(model, x, per_channel=True, batch_size=16)
    seen = inputs_by_hand(seeded(Transformer), x)
    assert torch.equal(forges(model)["blocks.0.fc2"].bound, seen["blocks.0.fc2"][0].abs().amax(dim=(0, 1)))


def test_mean_and_deviation_for_mean_centred():
    model, x = inserted(mask=MeanCentred()), images(32)
    assert calibrate_(model, x).statistic == "mean and deviation per channel"
    seen = inputs_by_hand(seeded(ResidualNet), x)["block2.conv1"][0].double()
    forge = forges(model)["block2.conv1"]
    torch.testing.assert_close(forge.centre, seen.mean(dim=(0, 2, 3)).float())
    torch.testing.assert_close(forge.bound, seen.std(dim=(0, 2, 3), correction=0).float())
    assert not torch.equal(model(x), seeded(ResidualNet)(x))


def test_the_quantile_of_the_inputs():
    model, x = inserted(), images(32)
    calibrate_(model, x, quantile=0.99)
    seen = inputs_by_hand(seeded(ResidualNet), x)["block1.conv2"][0].abs().flatten()
    exact = seen.sort().values[-(-99 * len(seen) // 100) - 1].item()
    assert exact <= forges(model)["block1.conv2"].bound.item() <= exact * (1 + 2**-10) * (1 + 1e-5)


@pytest.mark.parametrize("options", [{}, {"per_channel": True}])
def test_batch_size_and_order_do_not_matter(options):
    # float64: with float32, convolutions themselves round differently for other batch sizes (about 1e-7).
    x = images(30).double()
    results = []
    for source, batch_size in (
        (x, 30),
        (x, 7),
        (x.flip(0), 4),
        (x[torch.randperm(30, generator=torch.Generator().manual_seed(0))], 1),
    ):
        model = inserted().double()
        results.append(calibrate_(model, source, batch_size=batch_size, **options).bounds)
    for other in results[1:]:
        for name, bound in results[0].items():
            assert other[name] == pytest.approx(bound, rel=1e-12)


def loader(x: torch.Tensor) -> DataLoader:
    return DataLoader(TensorDataset(x, torch.zeros(len(x), dtype=torch.long)), batch_size=5)


@pytest.mark.parametrize(
    "source",
    [
        lambda x: x,
        lambda x: (x, torch.zeros(len(x), dtype=torch.long)),
        loader,
        lambda x: TensorDataset(x, torch.zeros(len(x))),
        lambda x: list(x.split(5)),
        lambda x: iter(x.split(5)),
        lambda x: ((part, None) for part in x.split(5)),
        lambda x: TensorDataset(x),
        lambda x: DataLoader(TensorDataset(x), batch_size=5),
        lambda x: ((part, torch.zeros(len(part)), "and more") for part in x.split(5)),
        lambda x: [x[:5], x[:0], x[5:]],
    ],
)
def test_every_kind_of_source_gives_the_same_bounds(source):
    x = images(12)
    recipe = forge_(seeded(ResidualNet), source(x), batch_size=5)
    assert recipe.images_seen == 12
    for name, bound in forge_(seeded(ResidualNet), x, batch_size=5).bounds.items():
        assert recipe.bounds[name] == bound


def test_nothing_but_the_bounds_changes():
    model = inserted()
    random = torch.get_rng_state()
    calibrate_(model, TensorDataset(images(8), torch.zeros(8)))
    assert torch.equal(torch.get_rng_state(), random)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    gradients = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    calibrate_(model, images(16))
    assert all(torch.equal(state[key], tensor) for key, tensor in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == gradients
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {forge.mode for forge in forges(model).values()} == {"forged"}
    assert all(forge.tracker is None for forge in forges(model).values())


def test_calibrating_again_replaces_the_bounds():
    model = inserted()
    calibrate_(model, images(16))
    again = calibrate_(model, images(16) * 0.1)
    assert again.bounds == calibrate_(inserted(), images(16) * 0.1).bounds


def test_no_more_than_three_batches_are_alive_at_a_time():
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def stream():
        nonlocal most
        for index in range(20):
            batch = images(4, seed=index)
            alive.add(batch)
            most = max(most, len(alive))
            yield batch
            del batch

    calibrate_(inserted(), stream())
    assert most <= 3  # the one read, the one in work, the one whose check is pending


def poisoned(count: int, index: int) -> tuple[nn.Module, torch.Tensor]:
    """A model that turns one image, marked by its first pixel, into an infinite activation at block2."""
    model, x = inserted(), images(count)
    x[:, 0, 0, 0] = 0.5
    x[index, 0, 0, 0] = 1.0
    marked: list[torch.Tensor] = []
    model.register_forward_pre_hook(lambda m, args: marked.append(args[0][:, 0, 0, 0] == 1))

    def poison(layer, args, output):
        output = output.clone()
        output[marked[-1], 0, 0, 0] = float("inf")
        return output

    model.block1.register_forward_hook(poison)
    return model, x


@pytest.mark.parametrize(("index", "batch_size"), [(0, 4), (7, 4), (18, 4), (18, 64)])
def test_a_non_finite_activation_names_site_and_image(index, batch_size):
    model, x = poisoned(19, index)
    with pytest.raises(CalibrationError, match=f"site 'block2.conv1' saw a non-finite activation in image {index};"):
        calibrate_(model, x, batch_size=batch_size)
    assert all(forge.bound == 0 and forge.mode == "forged" for forge in forges(model).values())


def test_an_error_leaves_the_old_bounds():
    model, x = poisoned(19, 3)
    calibrate_(model, x[4:])
    before = {name: forge.bound.item() for name, forge in forges(model).items()}
    with pytest.raises(CalibrationError):
        calibrate_(model, x)
    assert {name: forge.bound.item() for name, forge in forges(model).items()} == before


def test_a_site_that_was_never_reached_is_named():
    model = seeded(ResidualNet)
    sites = list(find_sites(model))
    model.forward = lambda x: model.head(torch.cat([model.block1(model.stem(x))] * 2, dim=1).mean(dim=(2, 3)))
    insert_(model, sites)
    with pytest.raises(CalibrationError, match=r"never reached site 'block2\.conv1' and 1 more"):
        calibrate_(model, images(4))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (images(0), "images must not be empty"),
        ([], "images must not be empty"),
        (images(4) * 255, r"images must lie in \[0, 1\], got \[.*first in image 0\); divide them by 255"),
        (images(4) - 0.5, r"images must lie in \[0, 1\].*put normalisation inside the model"),
        ((images(4) * 255).byte(), "must be floating point in .*divide bytes by 255"),
        (images(4)[0], r"shape \(N, C, H, W\), got \(3, 32, 32\)"),
        (["cat.png"], "images must be a tensor"),
        (17, "images must be a tensor, a data set or an iterable of batches, got int"),
    ],
)
def test_bad_images_are_named_and_leave_the_model_alone(source, message):
    model = inserted()
    with pytest.raises(InputError, match=message):
        calibrate_(model, source)
    assert all(forge.mode == "forged" and forge.bound == 0 for forge in forges(model).values())


@pytest.mark.parametrize("shape", [(4, 1, 32, 32), (4, 32, 32, 3)])
def test_a_wrong_channel_count_is_named(shape):
    with pytest.raises(ModelError, match=r"fails on images of the shape .*first conv takes 3 channels: are the images"):
        calibrate_(inserted(), torch.zeros(shape))


def test_a_model_that_makes_its_own_channels_is_calibrated():
    class Grey(ResidualNet):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3, padding=1)

        def forward(self, x):
            return super().forward(x.mean(dim=1, keepdim=True))

    assert forge_(seeded(Grey), images(4)).images_seen == 4


def test_calibration_works_from_every_mode_and_leaves_it():
    for mode in ("plain", "track", "forged", "straight_through"):
        model = inserted()
        set_mode_(model, mode)
        assert calibrate_(model, images(8)).bounds == calibrate_(inserted(), images(8)).bounds
        assert {forge.mode for forge in forges(model).values()} == {mode}


def test_a_linear_layer_called_on_single_vectors_has_bounds_per_channel():
    class OneByOne(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(12, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return torch.stack([self.last(self.second(self.first(image.flatten()))) for image in x])

    model, x = seeded(OneByOne), images(5, size=2)
    forge_(model, x, per_channel=True)
    expected = seeded(OneByOne).first(x.flatten(1)).abs().amax(dim=0)
    torch.testing.assert_close(forges(model)["second"].bound, expected)


def test_an_interrupt_leaves_the_model_as_it_was():
    model = inserted()
    calibrate_(model, images(8))
    before = {name: forge.bound.item() for name, forge in forges(model).items()}

    def interrupted():
        yield images(4) * 0.1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate_(model, interrupted())
    assert {name: forge.bound.item() for name, forge in forges(model).items()} == before
    assert all(forge.mode == "forged" and forge.tracker is None for forge in forges(model).values())
    fresh = seeded(ResidualNet)
    with pytest.raises(KeyboardInterrupt):
        forge_(fresh, interrupted())
    assert forges(fresh) == {}


def test_a_source_that_can_be_read_once_loses_no_image():
    class Once(IterableDataset):
        def __init__(self) -> None:
            self.left = list(images(16))

        def __iter__(self):
            while self.left:
                yield self.left.pop(0)

    assert forge_(seeded(ResidualNet), Once(), batch_size=4).images_seen == 16


def test_an_image_with_nan_is_named():
    x = images(9)
    x[6, 1, 2, 3] = float("nan")
    with pytest.raises(InputError, match=r"images must lie in \[0, 1\].*first in image 6"):
        calibrate_(inserted(), x, batch_size=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantile": 0.0}, "quantile must lie in"),
        ({"quantile": 1.5}, "quantile must lie in"),
        ({"quantile": 0.5, "per_channel": True}, "cannot be combined"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        calibrate_(inserted(), images(4), **options)


def test_a_quantile_for_mean_centred_is_refused():
    with pytest.raises(InputError, match="quantile does not apply to the mask 'mean_centred'"):
        calibrate_(inserted(mask=MeanCentred()), images(4), quantile=0.5)


def test_a_model_in_train_mode_is_refused():
    with pytest.raises(ModelError, match="must be in eval mode"):
        calibrate_(inserted().train(), images(4))


def test_a_model_without_forges_is_refused():
    with pytest.raises(SiteError, match="no forged functions"):
        calibrate_(seeded(ResidualNet), images(4))


def _rank(rank: int, meeting: str, fail: bool, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        x = images(10)[rank::2]
        recipe = calibrate_(inserted(), x * 2 if fail and rank == 1 else x, batch_size=5)
        results.put((rank, recipe.bounds, recipe.images_seen))
    except Exception as error:
        results.put((rank, str(error), 0))
    finally:
        dist.destroy_process_group()
        leave(0)


def run_ranks(folder: Path, *, fail: bool) -> dict[int, tuple]:
    results = get_context("spawn").SimpleQueue()
    context = spawn(_rank, args=(str(folder / "meeting"), fail, results), nprocs=2, join=False)
    deadline = time.monotonic() + 240
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, "the ranks never ended"
    finally:
        for process in context.processes:
            process.kill()
    return {rank: rest for rank, *rest in (results.get() for _ in range(2))}


@pytest.mark.slow
def test_bounds_are_reduced_over_ranks(tmp_path):
    answers = run_ranks(tmp_path, fail=False)
    alone = calibrate_(inserted(), images(10), batch_size=5).bounds
    assert answers[0] == answers[1]
    assert answers[0][1] == 10
    for name, bound in alone.items():
        assert answers[0][0][name] == pytest.approx(bound, rel=1e-6)


@pytest.mark.slow
def test_if_one_rank_fails_all_do(tmp_path):
    answers = run_ranks(tmp_path, fail=True)
    assert "images must lie in [0, 1]" in answers[1][0]
    assert "failed on another rank" in answers[0][0]
