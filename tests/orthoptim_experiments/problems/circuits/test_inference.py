"""Marginals, samples and in-painting, against brute force."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orthoptim_experiments.problems.circuits import SquaredUnitaryCircuit, inpaint, log_marginal, sample
from tests.orthoptim_experiments.problems.circuits.oracle import all_images, assert_distributed, number, tiny

SIZES = st.sampled_from([(2, 2, 3, 3), (2, 3, 2, 3), (3, 3, 2, 2), (1, 5, 3, 3), (3, 4, 2, 2)])


@given(SIZES, st.booleans(), st.integers(0, 1000))
@settings(max_examples=20)
def test_marginals_equal_sums_over_all_images(size, unitary, seed):
    circuit = tiny(*size, unitary=unitary, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, size[3], (6, *size[:2]), generator=generator)
    seen = torch.rand(6, *size[:2], generator=generator) < 0.5
    seen[0], seen[1] = True, False
    every = all_images(circuit)
    with torch.no_grad():
        likelihood = circuit(every)
        agreeing = [((every == image) | ~mask).flatten(1).all(1) for image, mask in zip(images, seen, strict=True)]
        expected = torch.stack([likelihood[agree].logsumexp(0) for agree in agreeing])
        torch.testing.assert_close(log_marginal(circuit, images, seen), expected, atol=1e-9, rtol=0)
        shared = torch.stack([log_marginal(circuit, images[[row]], seen[row])[0] for row in range(6)])
        torch.testing.assert_close(shared, expected, atol=1e-9, rtol=0)


def test_marginals_of_a_large_image_lie_between_the_image_and_nothing():
    circuit = SquaredUnitaryCircuit(28, 28, 4)
    images = sample(circuit, 4, generator=torch.Generator().manual_seed(0))
    seen = torch.zeros(28, 28, dtype=torch.bool)
    with torch.no_grad():
        values = [log_marginal(circuit, images, seen)]
        for row in range(0, 28, 9):
            seen[row : row + 9, :23] = True
            values.append(log_marginal(circuit, images, seen))
        values.append(circuit(images))
    assert values[0].abs().max() < 1e-3
    assert all((later < earlier).all() for earlier, later in pairwise(values))


@pytest.mark.parametrize("unitary", [True, False])
@pytest.mark.parametrize("size", [(2, 2, 3, 3), (2, 3, 2, 3), (3, 3, 2, 2)])
def test_samples_have_the_distribution_of_the_circuit(size, unitary):
    circuit = tiny(*size, unitary=unitary)
    draws = sample(circuit, 20_000, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        probabilities = (circuit(all_images(circuit)) - circuit.log_partition()).exp()
    assert_distributed(torch.bincount(number(circuit, draws), minlength=len(probabilities)), probabilities)


@pytest.mark.parametrize("unitary", [True, False])
def test_pixels_of_samples_have_the_exact_marginals(unitary):
    circuit = tiny(5, 6, 3, 5, unitary=unitary)
    draws = sample(circuit, 4000, generator=torch.Generator().manual_seed(2))
    images = torch.arange(5)[:, None, None].expand(5, 5, 6)
    for row in range(5):
        for column in range(6):
            seen = torch.zeros(5, 6, dtype=torch.bool)
            seen[row, column] = True
            with torch.no_grad():
                probabilities = (log_marginal(circuit, images, seen) - circuit.log_partition()).exp()
            assert probabilities.sum().item() == pytest.approx(1, abs=1e-9)
            assert_distributed(torch.bincount(draws[:, row, column], minlength=5), probabilities)


@pytest.mark.parametrize("unitary", [True, False])
@pytest.mark.parametrize("size", [(2, 3, 2, 3), (3, 3, 2, 2)])
def test_inpainting_has_the_conditional_distribution(size, unitary):
    circuit = tiny(*size, unitary=unitary)
    generator = torch.Generator().manual_seed(3)
    every = all_images(circuit)
    with torch.no_grad():
        likelihood = circuit(every)
    for seed in range(4):
        image = every[(seed * 101) % len(every)]
        mask = torch.rand(size[:2], generator=torch.Generator().manual_seed(seed)) < 0.4
        draws = inpaint(circuit, image.expand(8000, -1, -1), mask, generator=generator)
        assert (draws == image)[:, mask].all()
        agree = ((every == image) | ~mask).flatten(1).all(1)
        probabilities = torch.where(agree, likelihood - likelihood[agree].logsumexp(0), -torch.inf).exp()
        assert_distributed(torch.bincount(number(circuit, draws), minlength=len(every)), probabilities)


def test_each_image_may_have_its_own_mask():
    circuit = tiny(3, 3, 2, 2, unitary=True)
    images = torch.randint(0, 2, (40, 1, 3, 3), dtype=torch.uint8)
    seen = torch.rand(40, 3, 3) < 0.7
    draws = inpaint(circuit, images, seen)
    assert torch.equal(draws[seen], images[:, 0][seen].long())
    assert not torch.equal(draws, images[:, 0].long())


def test_what_stands_in_hidden_pixels_does_not_matter():
    circuit = tiny(3, 3, 2, 2, unitary=True)
    seen = torch.eye(3, dtype=torch.bool)
    images = torch.randint(0, 2, (5, 3, 3))
    other = torch.where(seen, images, 77)
    assert torch.equal(log_marginal(circuit, images, seen), log_marginal(circuit, other, seen))


def test_samples_repeat_with_the_generator():
    circuit = SquaredUnitaryCircuit(8, 8, 2, 16)
    one, two, three = (sample(circuit, 5, generator=torch.Generator().manual_seed(seed)) for seed in (7, 7, 8))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert sample(circuit, 0).shape == (0, 8, 8)


def test_samples_of_extreme_weights():
    circuit = SquaredUnitaryCircuit(9, 9, 2)
    expected = sample(circuit, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in circuit.parameters():
            parameter.mul_(2.0**-70)
    assert torch.equal(sample(circuit, 6, generator=torch.Generator().manual_seed(0)), expected)


def test_nothing_is_drawn_given_the_impossible():
    circuit = tiny(2, 2, 2, 3, unitary=True)
    with torch.no_grad():
        circuit.leaves[0, :, 1] = 0
    seen = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match="probability zero"):
        inpaint(circuit, torch.ones(1, 2, 2, dtype=torch.int64), seen)


@pytest.mark.parametrize(
    ("seen", "message"),
    [(torch.zeros(2, 2), "boolean"), (torch.zeros(3, 2, dtype=torch.bool), r"shape \(2, 2\) or \(examples, 2, 2\)")],
)
def test_bad_masks(seen, message):
    with pytest.raises(ValueError, match=message):
        log_marginal(tiny(2, 2, 2, 3, unitary=True), torch.zeros(5, 2, 2, dtype=torch.int64), seen)
