from lipforge.forge import load_fold
from tests.cli.test_search import recipe
from tests.schemas import results_of

__all__ = ["recipe"]

DATA = ("--data", "cifar10-sample:train", "--limit", 8)
FOLD = ("fold", "cifar10-resnet", "--ratio", "2^-5", *DATA)
EVALUATE = ("--data", "cifar10-sample", "--limit", 4, "--attack", "fgsm", "--json")


def test_several_frequencies_come_from_one_count(run, recipe, tmp_path):
    ended = run(*FOLD, "--recipe", recipe, "--frequency", "0.5,0.9", "--json")
    assert ended.code == 0, ended.err
    often, always = results_of(ended.out)
    assert (often["out"], always["out"]) == ("fold-0.5.safetensors", "fold-0.9.safetensors")
    assert often["columns"] > always["columns"]
    fold = load_fold(tmp_path / "fold-0.5.safetensors")
    assert sum(map(len, fold.columns.values())) == often["columns"]
    assert fold.counts.images_seen == 8


def test_a_count_on_test_images_gets_a_note(run, recipe):
    count = ("fold", "cifar10-resnet", "--recipe", recipe, "--limit", 2)
    assert "cifar10-sample:test/first 2 are test images" in run(*count, "--data", "cifar10-sample:test").err
    assert "are test images" in run(*count, "--data", "cifar10-sample").err
    assert "test images" not in run(*count, "--data", "cifar10-sample:train").err


def test_the_folded_model_is_measured_beside_the_base(run, recipe):
    assert run(*FOLD, "--recipe", recipe, "--frequency", "0.5", "--out", "f.safetensors").code == 0
    ended = run("evaluate", "cifar10-resnet", "--fold", "f.safetensors", *EVALUATE)
    labels = [one["label"] for one in results_of(ended.out)]
    assert labels == ["base", "folded 0.5"]


def test_folds_of_one_frequency_are_told_apart_by_their_files(run, recipe, tmp_path):
    made = ("fold", "cifar10-resnet", *DATA, "--recipe", recipe, "--frequency", "0.5")
    assert run(*made, "--ratio", "2^-5", "--out", "a.safetensors").code == 0
    assert run(*made, "--ratio", "2^-6", "--out", "b.safetensors").code == 0
    ended = run("evaluate", "cifar10-resnet", "--fold", "a.safetensors", "--fold", "b.safetensors", *EVALUATE)
    assert [one["label"] for one in results_of(ended.out)] == ["base", "folded 0.5 a", "folded 0.5 b"]
    ended = run("evaluate", "cifar10-resnet", "--fold", "a.safetensors", "--fold", "a.safetensors", *EVALUATE)
    assert ended.code == 2
    assert "--fold has two files for 'folded 0.5 a', the second is a.safetensors" in ended.err


def test_a_fold_of_other_weights_is_refused(run, recipe):
    assert run(*FOLD, "--recipe", recipe, "--frequency", "0.5", "--out", "f.safetensors").code == 0
    ended = run("evaluate", "cifar10-resnet-natural", "--fold", "f.safetensors", *EVALUATE)
    assert ended.code == 2
    assert "f.safetensors: the fold was made for other weights" in ended.err


def test_a_frequency_that_nothing_reaches_is_said(run, recipe):
    ended = run("fold", "cifar10-resnet", *DATA, "--recipe", recipe, "--frequency", "1")
    assert ended.code == 0, ended.err
    assert "no input is zero 100% of the time or more: the folded model is the base itself" in ended.err
    assert "wrote fold.safetensors" in ended.out


def test_several_ratios_share_one_base(run, recipe, tmp_path):
    given = ("cifar10-resnet", "--recipe", recipe, "--ratio", "2^-7,2^-6", "--data", "cifar10-sample")
    ended = run("evaluate", *given, "--limit", 4, "--attack", "fgsm", "--run", "x")
    assert ended.code in (0, 4), ended.err
    assert "fgsm, forged 2^-6: base" in ended.out
    assert len(list((tmp_path / "x/shards").iterdir())) == 3
    ended = run("analyse", *given, "--images", 2, "--spectral", 0, "--attack", "none", "--run", "x", "--json")
    models = [one["model"] for one in results_of(ended.out)]
    assert models == ["cifar10-resnet 2^-7", "cifar10-resnet 2^-6"]
    ended = run("certify", *given, "--limit", 1, "--n", 10, "--n0", 4, "--json")
    assert [one["label"] for one in results_of(ended.out)] == ["base", "forged 2^-7", "forged 2^-6"]


def test_commands_that_take_one_ratio_say_so(run, recipe):
    ended = run("transfer", "cifar10-resnet", "--recipe", recipe, "--ratio", "2^-7,2^-6", "--data", "cifar10-sample")
    assert ended.code == 2
    assert "--ratio takes one ratio here, got 2^-7,2^-6" in ended.err
    ended = run("evaluate", "cifar10-resnet", "--recipe", recipe, "--ratio", "2^-7,2^-7", "--data", "cifar10-sample")
    assert "--ratio must list different ratios" in ended.err
