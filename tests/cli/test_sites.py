from lipforge.forge import find_sites
from lipforge.models import load_model
from tests.schemas import result_of

MASK = """
import torch

class MeanSparse(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("running_mean", "running_var", "threshold"):
            self.register_buffer(name, torch.zeros(6))

    def forward(self, x):
        return x

def sparse():
    net = Net()
    net.mask = MeanSparse()
    return net
"""


def test_the_table_shows_each_site_with_its_shape_and_what_was_left_out_with_its_reason(run):
    ended = run("sites", "resnet20")
    survey = find_sites(load_model("resnet20", pretrained=False))
    assert (ended.code, ended.err) == (0, "")
    assert f"resnet20: {len(survey)} sites" in ended.out
    for site in survey:
        row = next(line for line in ended.out.splitlines() if f" {site.name} " in line)
        assert "x".join(map(str, site.input_shape[1:])) in row
    assert "the stem: " in ended.out
    assert "the head: " in ended.out


def test_json_is_an_object_with_the_sites_of_the_library_and_nothing_else(run):
    ended = run("sites", "resnet20", "--json")
    survey = find_sites(load_model("resnet20", pretrained=False))
    assert (ended.code, ended.err) == (0, "")
    printed = result_of(ended.out)
    assert [site["name"] for site in printed["sites"]] == survey.names
    assert printed["sites"][0]["input_shape"] == list(survey[0].input_shape)
    assert {layer["name"] for layer in printed["skipped"]} == {layer.name for layer in survey.skipped}
    assert (printed["model"], printed["carried_masks"]) == ("resnet20", [])


def test_rules_include_and_exclude_choose_the_sites(run, model_file):
    def names(*options):
        return [
            site["name"] for site in result_of(run("sites", f"{model_file}:build", "--json", *options).out)["sites"]
        ]

    assert names() == ["conv1", "conv2"]
    assert names("--rule", "name:stem", "--rule", "name:head") == ["stem", "head"]
    assert names("--include", "*2") == ["conv2"]
    assert names("--include", "conv1", "--include", "conv2", "--exclude", "*2") == ["conv1"]


def test_an_unknown_rule_is_an_error_with_the_nearest_one(run):
    ended = run("sites", "resnet20", "--rule", "residual_conv")
    assert (ended.code, ended.out) == (2, "")
    assert "unknown rule 'residual_conv'" in ended.err
    assert "did you mean 'residual_convs'?" in ended.err


def test_a_glob_that_matches_nothing_is_an_error_that_says_so(run):
    ended = run("sites", "resnet20", "--include", "nothing.*")
    assert (ended.code, ended.out) == (2, "")
    assert "matches no glob of include (nothing.*)" in ended.err


def test_masks_that_a_model_carries_already_are_pointed_out(run, model_file):
    model_file.write_text(model_file.read_text() + MASK)
    ended = run("sites", f"{model_file}:sparse")
    assert ended.code == 0
    assert "note: this model carries 1 MeanSparse masks already, such as 'mask'" in ended.err
    assert result_of(run("sites", f"{model_file}:sparse", "--json").out)["carried_masks"] == ["mask"]
    forged = run("forge", f"{model_file}:sparse", "--data", "cifar10-sample", "--limit", 4, "--json")
    assert "carries 1 MeanSparse masks already" in forged.err
    assert len(result_of(forged.out)["sites"]) == 2
