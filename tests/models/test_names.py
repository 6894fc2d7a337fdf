from lipforge.models.names import suggest


def test_case_does_not_matter_and_the_true_spelling_comes_back():
    assert suggest("WU2020adversarial", ["Wu2020Adversarial"]) == "; did you mean 'Wu2020Adversarial'?"


def test_at_most_three_names_are_suggested_nearest_first():
    told = suggest("resnet20", ["resnet21", "resnet2", "resnet22", "resnet23", "vgg"])
    assert told.count("resnet") == 3
    assert "vgg" not in told
