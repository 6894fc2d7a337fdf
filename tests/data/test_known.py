import pytest

from lipforge.data.known import CIFAR100_CLASSES, KNOWN, SPLITS


@pytest.mark.parametrize("known", KNOWN.values(), ids=lambda known: known.name)
def test_every_layout_names_files_for_both_splits(known):
    assert known.layouts
    assert all(set(layout.files) == set(SPLITS) == set(known.counts) for layout in known.layouts)


def test_cifar_100_has_a_hundred_sorted_names():
    assert len(set(CIFAR100_CLASSES)) == 100
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES)


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
def test_checksums_are_those_that_torchvision_publishes(name):
    vision = pytest.importorskip("torchvision.datasets")
    peer, layout = getattr(vision, name), KNOWN[name.lower()].layouts[0]
    assert (layout.archive, layout.url, layout.md5) == (peer.filename, peer.url, peer.tgz_md5)
    assert dict(layout.file_md5) == dict([*peer.train_list, *peer.test_list])
    assert layout.inside == peer.base_folder


@pytest.mark.parametrize("known", KNOWN.values(), ids=lambda known: known.name)
def test_downloads_use_https(known):
    assert all(layout.url.startswith("https://") for layout in known.layouts if layout.url)
