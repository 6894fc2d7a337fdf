import pytest

from lipforge.attacks import PGD
from lipforge.data import load_data
from lipforge.errors import InputError, SiteError
from lipforge.evaluation import evaluate
from lipforge.forge import forge_, forged, forges, insert_, plain, set_ratio_, straight_through
from lipforge.forge.sites import find_sites
from lipforge.models import load_model
from lipforge.search import choose_ratio
from lipforge.search.choose import network_stages, views_of
from lipforge.types import Threat
from tests.nets import ResidualNet, images, seeded

THREAT = Threat("linf", "8/255")
ATTACK = PGD(steps=4, loss="margin")


def small():
    model = seeded(ResidualNet)
    forge_(model, images(16), ratio=2**-5)
    x = images(24, seed=1)
    return model, (x, plain(model)(x).argmax(dim=1))


@pytest.fixture(scope="module")
def bundled():
    model = load_model("cifar10-resnet")
    forge_(model, load_data("cifar10-sample:train", limit=64), ratio=2**-7)
    return model, load_data("cifar10-sample", limit=24)


@pytest.mark.parametrize("metric", ["non-adaptive", "union"])
def test_on_real_images_every_score_is_that_of_attacking_in_full(bundled, metric):
    """Nothing is skipped, so the figure is that of every point tried: at most what each attack alone leaves."""
    model, data = bundled
    found = choose_ratio(model, data, threat=THREAT, attack=ATTACK, metric=metric, skip_above=None, ratios=(2**-6,))
    set_ratio_(model, 2**-6)
    alone = [evaluate(forged(model), data, ATTACK, THREAT)]
    if metric == "union":
        alone.append(evaluate(straight_through(model), data, ATTACK, THREAT, seed=1))
    robust = [all(each) for each in zip(*(result.robust for result in alone), strict=True)]
    score = found.scores[1]
    assert score.clean_accuracy == alone[0].clean_accuracy
    base = evaluate(plain(model), data, ATTACK, THREAT)
    differ = [place for place, (one, other) in enumerate(zip(score.robust, robust, strict=True)) if one != other]
    assert all(score.outcome[place].startswith(("transfer from", "refine")) for place in differ)
    assert sum(found.scores[0].robust) <= sum(base.robust)


def test_skipping_far_images_changes_no_outcome_on_real_images_and_saves_passes(bundled):
    model, data = bundled
    ratios = (2**-8, 2**-7, 2**-6)
    skipped, full = (
        choose_ratio(model, data, threat=THREAT, attack=ATTACK, ratios=ratios, skip_above=share)
        for share in (0.08, None)
    )
    assert [score.robust for score in skipped.scores] == [score.robust for score in full.scores]
    assert skipped.chosen == full.chosen
    assert sum(score.skipped for score in skipped.scores) > 0
    assert skipped.backwards < 0.6 * full.backwards


def test_the_model_is_left_with_the_ratios_it_had():
    model, data = small()
    set_ratio_(model, {"block1.*": 0.25})
    before = {name: forge.ratio for name, forge in forges(model).items()}
    choose_ratio(model, data, threat=THREAT, attack=ATTACK)
    assert {name: forge.ratio for name, forge in forges(model).items()} == before
    with pytest.raises(InputError):
        choose_ratio(model, (data[0] * 2, data[1]), threat=THREAT, attack=ATTACK)
    assert {name: forge.ratio for name, forge in forges(model).items()} == before


def test_the_choice_can_be_applied_whatever_its_form():
    model, data = small()
    found = choose_ratio(model, data, threat=Threat("linf", "1/255"), attack=ATTACK, groups=True)
    set_ratio_(model, found.best.ratio)
    set_ratio_(model, found.chosen)
    tried = [score.ratio for score in found.scores if isinstance(score.ratio, dict)]
    assert tried
    assert {tuple(ratio) for ratio in tried} == {("block1.*", "block2.*")}


def test_base_and_forged_get_the_same_number_of_runs():
    model, _ = small()
    for metric, count in (("non-adaptive", 1), ("union", 2)):
        views = views_of(model, metric)  # type: ignore[arg-type]
        assert [len(views(setting)) for setting in (0.0, 2**-7)] == [count, count]


@pytest.mark.parametrize(
    ("names", "globs"),
    [
        (["layer1.0.conv1", "layer1.1.conv1", "layer2.0.conv1"], ("layer1.*", "layer2.*")),
        (["net.a.0.x", "net.a.1.x", "net.b.0.x"], ("net.a.*", "net.b.*")),
        (["conv1", "conv2"], ("conv1", "conv2")),
        (["only.one"], ("only.one",)),
    ],
)
def test_the_stages_of_a_network_are_told_apart_by_their_names(names, globs):
    assert network_stages(names) == globs


def test_what_cannot_be_searched_is_refused_with_the_way_out():
    model, data = small()
    with pytest.raises(InputError, match="metric must be non-adaptive or union, got 'both'"):
        choose_ratio(model, data, threat=THREAT, metric="both")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"groups must cover every site, but none of block1.\* matches 'block2.conv1'"):
        choose_ratio(model, data, threat=THREAT, groups=["block1.*"])
    with pytest.raises(SiteError, match="no forged functions"):
        choose_ratio(seeded(ResidualNet), data, threat=THREAT)
    bare = seeded(ResidualNet)
    insert_(bare, find_sites(bare, images(2)), ratio=0.1)
    with pytest.raises(InputError, match="no bounds yet; calibrate"):
        choose_ratio(bare, data, threat=THREAT)
