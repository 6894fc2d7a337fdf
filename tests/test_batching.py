import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lipforge.batching import Batch, batches, check_eval, image_count
from lipforge.errors import InputError, ModelError
from tests.nets import ResidualNet, images, seeded


def test_batches_number_their_first_image():
    assert [batch.first for batch in batches(images(10), 4)] == [0, 4, 8]
    assert torch.equal(torch.cat([batch.images for batch in batches(images(10), 4)]), images(10))


def test_labels_come_along():
    labels = torch.arange(5)
    found = list(batches((images(5), labels), 2))
    assert all(isinstance(batch, Batch) for batch in found)
    assert torch.equal(torch.cat([batch.labels for batch in found if batch.labels is not None]), labels)


def test_the_count_is_known_where_it_can_be():
    data = TensorDataset(images(7), torch.zeros(7))
    assert image_count(images(7)) == image_count((images(7), torch.zeros(7))) == 7
    assert image_count(data) == image_count(DataLoader(data, batch_size=2)) == 7
    assert image_count(iter([images(7)])) is None


def test_labels_of_another_length_are_named():
    with pytest.raises(InputError, match="one per image, got 2 labels for 3 images"):
        list(batches([(images(3), torch.zeros(2))]))


def test_a_pair_of_other_lengths_is_named():
    with pytest.raises(InputError, match="one per image, got 2 labels for 3 images"):
        list(batches((images(3), torch.zeros(2)), 2))


def test_a_module_in_train_mode_is_named():
    model = seeded(ResidualNet)
    model.block1.bn1.train()
    with pytest.raises(ModelError, match=r"'block1\.bn1' is not; call model\.eval\(\)"):
        check_eval(model)
