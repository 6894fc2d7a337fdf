"""Square against the optimum on a linear model, and its windows against their description."""

import pytest
import torch
from pyautoattack.square import SquareAttack

from lipforge import rng
from lipforge.attacks import Square, norms
from lipforge.attacks.losses import margin
from lipforge.attacks.square import double_bump, span, start_squares, turn_window
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_oracle, small_images, small_net


def test_square_reaches_the_optimum_on_a_linear_model():
    model, x, y = linear_oracle()
    result = Square(queries=1500).run(model, x, y, threat=Threat("linf", 0.02))
    robust = ~result.broken
    assert robust.sum() >= 8
    margin = 2 * model(result.images).gather(1, y[:, None]).squeeze(1)
    # Each pixel has been drawn with each of its sign patterns many times, so the corner is reached exactly.
    torch.testing.assert_close(margin[robust], model.worst_margin(x, y, 0.02, "linf")[robust])


def test_a_query_costs_one_forward_and_no_backward():
    model = small_net()
    x, y = small_images(model)
    result = Square(queries=70, restarts=2).run(model, x, y, threat=Threat("linf", 1e-6))
    assert result.forwards.tolist() == [1 + 2 * 71] * len(x)
    assert result.backwards.tolist() == [0] * len(x)


def test_square_needs_no_gradient():
    net = small_net()
    x, y = small_images(net, 60)

    def rounded(images):
        with torch.no_grad():
            return net((images * 255).round() / 255)

    broken = Square(queries=100).run(rounded, x, y, threat=Threat("linf", 0.02)).broken
    assert 5 < broken.sum() < 60


def test_the_side_follows_the_published_schedule_of_shares():
    attack = Square()
    queries = (0, 10, 11, 51, 201, 501, 1001, 2001, 4001, 6001, 8001)
    sides = [attack.side(query, 32, 32) for query in queries]
    # sqrt(0.8 * 1024 / 2^k) for k = 0, 0, 1, ..., 9, rounded; never below 1
    assert sides == [29, 29, 20, 14, 10, 7, 5, 4, 3, 2, 1]
    assert Square(queries=5000, rescale=True).side(4500, 32, 32) == 1
    assert attack.side(0, 3, 32) == 3


def window(row_word, column_word, side, height, width):
    """A mask (M, 1, H, W) of one window per image, as Square makes it."""
    sides = torch.tensor([side])
    rows, columns = span(row_word[:, None], sides, height)[:, 0], span(column_word[:, None], sides, width)[:, 0]
    return rows[:, None, :, None] & columns[:, None, None, :]


def test_windows_are_uniform_and_reach_every_edge():
    words = rng.bits(0, torch.arange(6000), stream="w", shape=(2,))
    mask = window(words[:, 0], words[:, 1], 2, 4, 5)
    assert mask.shape == (6000, 1, 4, 5)
    assert (mask.sum(dim=(1, 2, 3)) == 4).all()
    first = mask[:, 0].flatten(1).float().argmax(dim=1)  # the upper left corner
    counts = first.bincount(minlength=20).reshape(4, 5)
    assert (counts[:3, :4] > 400).all()  # 500 expected in each of the 3 x 4 places, standard deviation 21
    assert counts[3].sum() == 0
    assert counts[:, 4].sum() == 0


def test_the_start_is_vertical_stripes_at_the_edge_of_the_ball():
    x = torch.full((10, 3, 6, 7), 0.5)
    change = start_squares(x, norms.of("linf"), 0.1, seed=0, sample_ids=torch.arange(10), stream="s") - x
    torch.testing.assert_close(change.abs(), torch.full_like(x, 0.1))
    assert (change == change[:, :, :1]).all()
    assert change.sign().mean().abs() < 0.3


@pytest.mark.parametrize("size", [(3, 10, 10), (1, 32, 32), (3, 7, 12), (2, 3, 3)])
def test_an_l2_start_has_length_eps(size):
    x = torch.full((4, *size), 0.5)
    change = start_squares(x, norms.of("l2"), 0.1, seed=0, sample_ids=torch.arange(4), stream="s") - x
    torch.testing.assert_close(change.flatten(1).norm(dim=1), torch.full((4,), 0.1), rtol=1e-4, atol=0)


def test_a_double_bump_has_length_one_and_a_half_of_each_sign():
    bump = double_bump(6, norms.of("l2"), torch.zeros(0))
    assert bump.norm().item() == pytest.approx(1.0)
    assert (bump[:3] > 0).all()
    assert (bump[3:] < 0).all()
    # Rows and columns of the 3 x 6 half are at distance 0 .. 3 from its middle (1, 3): covered by 4, 3, 2, 1 squares.
    heights = [1 + 1 / 4 + 1 / 9 + 1 / 16, 1 / 4 + 1 / 9 + 1 / 16, 1 / 9 + 1 / 16, 1 / 16]
    row = bump[1] / bump[1, 3]
    expected = [heights[abs(column - 3)] / heights[0] for column in range(6)]
    assert row.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("side", [1, 3, 4, 6, 20, 29])
def test_a_double_bump_is_that_of_the_reference(norm, side):
    peer = SquareAttack(None, norm=norm.upper(), eps=1.0, device="cpu")
    found, expected = double_bump(side, norms.of(norm), torch.zeros(0)), peer.eta(side)  # turned by chance
    assert torch.allclose(found, expected, atol=1e-7) or torch.allclose(found, expected.T, atol=1e-7)


def test_an_l1_start_is_the_projection_of_bumps_of_length_one():
    x, l1 = torch.full((4, 3, 32, 32), 0.5), norms.of("l1")
    change = start_squares(x, l1, 12.0, seed=0, sample_ids=torch.arange(4), stream="s") - x
    # At a radius that holds all 25 x 3 bumps nothing is cut.
    whole = start_squares(x, l1, 200.0, seed=0, sample_ids=torch.arange(4), stream="s") - x
    torch.testing.assert_close(whole.abs().sum(dim=(1, 2, 3)), torch.full((4,), 75.0))
    torch.testing.assert_close(change, l1.project(x + whole, x, 12.0) - x)
    torch.testing.assert_close(change.abs().sum(dim=(1, 2, 3)), torch.full((4,), 12.0))


def test_a_turned_window_keeps_the_length_and_moves_it_out_of_the_emptied_window():
    change = rng.normal(0, torch.arange(2), stream="c", shape=(3, 8, 8))
    change = change / change.flatten(1).norm(dim=1)[:, None, None, None] * 0.5
    words = torch.tensor([[0, 0], [2**31, 2**31]])
    fresh, emptied = window(words[:, 0], words[:, 1], 3, 8, 8), window(words[:, 1] + 2**31, words[:, 0], 3, 8, 8)
    emptied &= ~fresh
    signs, turned = torch.ones(2, 3, 1, 1), torch.tensor([False, True])
    new = turn_window(change, fresh, emptied, signs, 3, turned, norm=norms.of("l2"), eps=0.5)
    torch.testing.assert_close(new.flatten(1).norm(dim=1), torch.tensor([0.5, 0.5]))
    elsewhere = ~(fresh | emptied)
    assert torch.equal(new * emptied, torch.zeros_like(new))
    torch.testing.assert_close(new * elsewhere, change * elsewhere)
    assert not torch.allclose(new * fresh, change * fresh)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queries": 0}, "queries must be at least 1, got 0"),
        ({"restarts": 0}, "restarts must be at least 1, got 0"),
        ({"p_init": 0.0}, "p_init must lie in"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Square(**settings)


def test_candidates_are_asked_in_one_batch_and_the_best_is_kept():
    model, x, y = linear_oracle()
    asked = []

    def watched(images):
        asked.append(images)
        return model(images)

    result = Square(queries=6, candidates=4).run(watched, x, y, threat=Threat("linf", 1e-5))
    assert not result.broken.any()
    assert [len(images) // len(x) for images in asked] == [1, 1, 4, 2]
    assert (result.forwards == 8).all()
    best = asked[1]
    for batch in asked[2:]:
        for point in batch.split(len(x)):  # each is the best so far with one window changed
            changed = (point != best).any(dim=1).float()
            assert torch.equal(changed, changed.amax(dim=1, keepdim=True) * changed.amax(dim=2, keepdim=True))
        each = torch.stack([best, *batch.split(len(x))])
        margins = torch.stack([margin(model(points), y) for points in each])
        best = each[margins.argmin(dim=0), torch.arange(len(x))]
    torch.testing.assert_close(result.margin, margin(model(best), y))


def test_candidates_must_divide_what_is_drawn_at_once():
    with pytest.raises(InputError, match="candidates must divide 64, got 3"):
        Square(candidates=3)
