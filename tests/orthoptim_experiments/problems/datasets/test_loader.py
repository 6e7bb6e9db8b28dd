"""Batches and their augmentation: properties for any seed and size."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orthoptim_experiments.problems.datasets import BatchLoader, Images, derive_seed, normalize
from orthoptim_experiments.problems.datasets.augment import crop, flip

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
seeds = st.integers(0, 2**31)


def numbered(count, side=8):
    """Random images, whose label is their number."""
    pixels = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return Images(pixels, torch.arange(count))


def loader(images, batch_size, **options):
    return BatchLoader(images, batch_size, MEAN, STD, **options)


def epoch_of(batches):
    """An epoch in the order of its labels."""
    images, labels = map(torch.cat, zip(*(batches.next() for _ in range(batches.steps_per_epoch)), strict=True))
    return images[labels.argsort()], labels.sort().values


def test_normalize():
    images = numbered(2000)
    normed = normalize(images.pixels, MEAN, STD)
    expected = (images.pixels[7, 2, 3, 4].item() / 255 - MEAN[2]) / STD[2]
    assert normed[7, 2, 3, 4].item() == pytest.approx(expected, abs=1e-5)


@given(seeds)
def test_bytes_come_in_the_same_order_as_images(seed):
    images = numbered(23)
    plain, stored = loader(images, 5, seed=seed), loader(images, 5, seed=seed)
    for _ in range(2 * plain.steps_per_epoch):
        assert torch.equal(normalize(stored.next_bytes(), MEAN, STD), plain.next()[0])


@given(seeds, st.integers(1, 40), st.integers(1, 40))
def test_an_epoch_is_a_permutation_without_the_last_batch(seed, count, batch_size):
    if batch_size > count:
        with pytest.raises(ValueError, match="cannot be taken"):
            loader(numbered(count), batch_size)
        return
    batches = loader(numbered(count), batch_size, seed=seed)
    for epoch in range(3):
        labels = torch.cat([batches.next()[1] for _ in range(batches.steps_per_epoch)])
        assert batches.epoch == epoch
        assert len(labels) == count - count % batch_size
        assert len(labels.unique()) == len(labels)


@given(seeds)
def test_flips_alternate(seed):
    images = numbered(64)
    batches = loader(images, 16, alternate_flips=True, seed=seed)
    plain = normalize(images.pixels, MEAN, STD)
    mirrored = []
    for _ in range(4):
        seen, _ = epoch_of(batches)
        same, other = ((seen == target).flatten(1).all(1) for target in (plain, plain.flip(-1)))
        assert bool((same ^ other).all())
        mirrored.append(other)
    assert torch.equal(mirrored[0], mirrored[2])
    assert torch.equal(mirrored[1], mirrored[3])
    assert torch.equal(mirrored[0], ~mirrored[1])
    assert 8 < mirrored[0].sum() < 56


def test_flip_mirrors_the_named_images():
    images = torch.randn(3, 2, 4, 4)
    assert torch.equal(flip(images, torch.tensor([True, False, True]))[::2], images[::2].flip(-1))


@given(seeds, st.integers(1, 3))
def test_crops_are_windows_of_the_reflected_image(seed, pad):
    images = numbered(20)
    seen, _ = epoch_of(loader(images, 5, pad=pad, seed=seed))
    padded = torch.nn.functional.pad(normalize(images.pixels, MEAN, STD), (pad,) * 4, mode="reflect")
    for image, large in zip(seen, padded, strict=True):
        windows = [large[:, i : i + 8, j : j + 8] for i in range(2 * pad + 1) for j in range(2 * pad + 1)]
        assert any(torch.equal(image, window) for window in windows)


def test_crop_offsets():
    images = torch.arange(2 * 3 * 5 * 5.0).view(2, 3, 5, 5)
    assert torch.equal(crop(images, 2, torch.tensor([[2, 2], [2, 2]])), images)
    moved = crop(images, 2, torch.tensor([[3, 2], [2, 0]]))
    assert torch.equal(moved[0, :, :-1], images[0, :, 1:])
    assert torch.equal(moved[1, :, :, 2:], images[1, :, :, :-2])


def test_every_offset_is_drawn():
    images = numbered(2000)
    batches = loader(images, 2000, pad=2)
    batches.next()
    assert len(batches._offsets.unique(dim=0)) == 25


@given(seeds, st.integers(0, 11), st.integers(0, 11))
def test_resuming_is_exact_in_the_middle_of_an_epoch(seed, before, after):
    options = {"alternate_flips": True, "pad": 2}
    straight = loader(numbered(20), 5, seed=seed, **options)
    for _ in range(before):
        straight.next()
    resumed = loader(numbered(20), 5, seed=seed + 1, **options)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for _ in range(after):
        for one, other in zip(straight.next(), resumed.next(), strict=True):
            assert torch.equal(one, other)


@given(seeds)
def test_the_global_generator_does_not_matter(seed):
    options = {"alternate_flips": True, "pad": 2, "seed": seed}
    one, other = loader(numbered(20), 5, **options), loader(numbered(20), 5, **options)
    for _ in range(5):
        torch.manual_seed(1)
        images, labels = one.next()
        torch.manual_seed(2)
        again = other.next()
        assert torch.equal(images, again[0])
        assert torch.equal(labels, again[1])


def test_seeds_and_epochs_differ():
    orders = [loader(numbered(50), 50, seed=seed).next()[1].tolist() for seed in range(3)]
    batches = loader(numbered(50), 50)
    orders += [batches.next()[1].tolist() for _ in range(3)][1:]
    assert len({tuple(order) for order in orders}) == 5


@given(seeds, seeds)
def test_derived_seeds_fit_torch(seed, step):
    torch.Generator().manual_seed(derive_seed(seed, "dropout", step))
