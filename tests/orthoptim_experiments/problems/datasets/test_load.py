"""The data sets as tensors."""

import pytest
import torch

from orthoptim_experiments.problems.datasets import DataError, load


def check(data, shape, train, test):
    for images, count in ((data.train, train), (data.test, test)):
        assert images.pixels.shape == (count, *shape)
        assert images.pixels.dtype == torch.uint8
        assert images.labels.shape == (count,)
        assert images.labels.dtype == torch.int64
        assert images.labels.unique().tolist() == list(range(10))
    pixels = data.train.pixels[: 10 * shape[-1] ** 2] / 255
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(data.mean), atol=2e-3, rtol=0)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(data.std), atol=2e-3, rtol=0)


def test_digits():
    digits = load("digits")
    check(digits, (3, 32, 32), 1500, 297)
    zero = digits.train.pixels[0, 0, ::4, ::4].float().mul(16 / 255).round()
    assert digits.train.labels[0] == 0
    assert zero[0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]  # as scikit-learn prints it
    assert zero[3].tolist() == [0, 4, 12, 0, 0, 8, 8, 0]


def test_small_digits_are_those_that_are_enlarged():
    small, large = load("digits8"), load("digits")
    check(small, (1, 8, 8), 1500, 297)
    assert small.train.pixels.max() == 16
    for part, enlarged in ((small.train, large.train), (small.test, large.test)):
        assert torch.equal(part.labels, enlarged.labels)
        assert torch.equal((part.pixels[:, 0] * (255 / 16)).round().to(torch.uint8), enlarged.pixels[:, 0, ::4, ::4])


def test_cifar10(real_data):
    data = load("cifar10", real_data)
    check(data, (3, 32, 32), 50_000, 10_000)
    assert data.train.labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert data.test.labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert data.train.pixels[0, :, 0, 0].tolist() == [59, 62, 63]


def test_mnist(real_data):
    data = load("mnist", real_data)
    check(data, (1, 28, 28), 60_000, 10_000)
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_a_truncated_batch_of_cifar10(real_data, tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for file in (real_data / folder.name).iterdir():
        folder.joinpath(file.name).symlink_to(file)
    folder.joinpath("data_batch_3.bin").unlink()
    folder.joinpath("data_batch_3.bin").write_bytes(bytes(3073 * 100))
    with pytest.raises(DataError, match=r"data_batch_3\.bin is truncated or corrupt"):
        load("cifar10", tmp_path)


def test_unknown_name():
    with pytest.raises(DataError, match="unknown data set 'cifar100'; there are cifar10, mnist, digits, digits8"):
        load("cifar100")
