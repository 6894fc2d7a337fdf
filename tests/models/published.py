"""The models of the paper, and those of its nearest peer method, by their RobustBench names."""

from typing import NamedTuple


class PaperModel(NamedTuple):
    """A model that the paper forges: its name there, how `load_model` names it, and its number of sites.

    `sites` counts the convolutions of the residual branches, or the two linear layers of each transformer MLP.
    """

    title: str
    spec: str
    sites: int


PAPER_MODELS = (
    PaperModel("RST-AWP", "robustbench:cifar10/Linf/Wu2020Adversarial_extra", 24),
    PaperModel("DefEAT", "robustbench:cifar10/Linf/Chen2024Data_WRN_34_10", 30),
    PaperModel("LTD", "robustbench:cifar10/Linf/Chen2021LTD_WRN34_10", 30),
    PaperModel("AWP", "robustbench:cifar10/Linf/Wu2020Adversarial", 30),
    PaperModel("TRADES", "robustbench:cifar10/Linf/Zhang2019Theoretically", 30),
    PaperModel("WRN-70-16", "robustbench:cifar10/Linf/Wang2023Better_WRN-70-16", 66),
    PaperModel("EffAug", "robustbench:cifar100/Linf/Addepalli2022Efficient_WRN_34_10", 30),
    PaperModel("DKLD", "robustbench:cifar100/Linf/Cui2023Decoupled_WRN-34-10", 30),
    PaperModel("DefEAT", "robustbench:cifar100/Linf/Chen2024Data_WRN_34_10", 30),
    PaperModel("LTD", "robustbench:cifar100/Linf/Chen2021LTD_WRN34_10", 30),
    PaperModel("AWP", "robustbench:cifar100/Linf/Wu2020Adversarial", 30),
    PaperModel("WRN-70-16", "robustbench:cifar100/Linf/Wang2023Better_WRN-70-16", 66),
    PaperModel("Swin-L", "robustbench:imagenet/Linf/Liu2023Comprehensive_Swin-L", 48),
)
"""The 13 models of the paper's tables, in their order; "DefEAT", "LTD" and "AWP" exist once per data set."""

MEAN_SPARSE_MODELS = (
    "robustbench:cifar10/Linf/Amini2024MeanSparse_Ra_WRN_70_16",
    "robustbench:cifar10/Linf/Amini2024MeanSparse_S-WRN-94-16",
    "robustbench:cifar10/L2/Amini2024MeanSparse_S-WRN-70-16",
    "robustbench:cifar100/Linf/Amini2024MeanSparse_S-WRN-70-16",
    "robustbench:imagenet/Linf/Amini2024MeanSparse_ConvNeXt-L",
    "robustbench:imagenet/Linf/Amini2024MeanSparse_Swin-L",
)
"""RobustBench's entries of the nearest peer method; they carry masks already."""
