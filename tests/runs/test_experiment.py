"""What the progress of every kind of evaluation says."""

import pytest

from lipforge.attacks import FGSM, Cascade
from lipforge.evaluation import estimate, evaluate, sweep, transfer
from lipforge.runs import RunDir, Watch
from lipforge.search.choose import choose_ratio
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net

ATTACK, THREAT = Cascade((FGSM(),)), Threat("linf", 0.01)


def _evaluate(model, data):
    evaluate(model, data, ATTACK, THREAT, label="mine", shard_size=10)


def _sweep(model, data):
    sweep({"mine": model}, data, [ATTACK], [THREAT, Threat("linf", 0.02)], shard_size=10)


def _transfer(model, data):
    transfer(model, model, data, ATTACK, THREAT, names=("here", "there"), shard_size=10)


def _search(model, data):
    views = lambda setting: {"only": model}  # noqa: E731
    choose_ratio(
        views, data, attack=ATTACK, threat=THREAT, metric="non-adaptive", ratios=[0.5], shard_size=10, rounds=2
    )


def _estimate(model, data):
    estimate(model, data, ATTACK, THREAT, label="mine")


@pytest.mark.parametrize(
    ("work", "title", "names", "attack"),
    [
        (_evaluate, "mine", ["robust"], "fgsm"),
        (_sweep, "mine, fgsm", ["linf 0.02"], "fgsm, linf 0.02"),
        (_transfer, "here to there", ["here", "there"], "fgsm"),
        (_search, "search: round 2 of 2", ["base", "2^-1"], "2^-1: refine"),
        (_estimate, "mine: probe of 8 images", [], "fgsm"),
    ],
)
def test_progress_says_what_is_robust_so_far_and_which_attack_is_running(heard, work, title, names, attack):
    model = small_net()
    work(model, small_images(model, 20))
    label, _, _, status = heard[-1]
    assert label == title
    shares, _, current = str(status).rpartition("  ")
    assert [share.rsplit(" ", 2)[0] for share in shares.split(", ") if share] == names
    assert current == attack


def test_progress_of_a_resumed_run_begins_with_what_is_done(heard, tmp_path):
    model = small_net()
    for _ in range(2):
        with RunDir.open(tmp_path) as run:
            evaluate(model, small_images(model, 20), ATTACK, THREAT, shard_size=10, run=run)
        next((tmp_path / "shards").glob("*/0001.json")).unlink()
    assert [one.done for one in heard] == [0, 10]
    assert str(heard[1].status).startswith("robust ")


def test_the_share_is_of_all_shards_seen_so_far():
    watch = Watch(lambda shard: {"a": shard["a"]})
    watch.see({"a": ["robust"] * 3})
    watch.see({"a": ["fgsm"]})
    assert str(watch) == "a 75.0 %"


def test_a_look_while_a_shard_is_counted_sees_the_numbers_before_or_after():
    watch = Watch()

    class Words(list[str]):
        def count(self, word):
            assert str(watch) in ("", "robust 100.0 %")
            return super().count(word)

    watch.see({"outcome": Words(["robust"])})
    watch.see({"outcome": Words(["robust", "fgsm"])})
    assert str(watch) == "robust 66.7 %"


def test_a_shard_without_decided_images_says_nothing():
    watch = Watch()
    watch.see({"outcome": []})
    assert str(watch) == ""
