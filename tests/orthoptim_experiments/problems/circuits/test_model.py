"""The likelihood, its gradient, and the partition function, against brute force."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim_experiments.problems.circuits import SquaredUnitaryCircuit, bits_per_dimension, contraction
from tests.orthoptim_experiments.problems.circuits.oracle import all_images, amplitude, tiny

SIZES = [(2, 2, 3, 3), (2, 3, 2, 3), (3, 3, 2, 2), (1, 5, 3, 3), (5, 1, 2, 3), (1, 2, 2, 2)]


@pytest.mark.parametrize("size", SIZES)
def test_unitary_circuits_are_normalised(size):
    circuit = tiny(*size, unitary=True)
    with torch.no_grad():
        assert abs(circuit(all_images(circuit)).exp().sum().item() - 1) < 1e-10
        assert abs(circuit.log_partition().item()) < 1e-10


@pytest.mark.parametrize("size", SIZES)
def test_partition_function_off_the_manifold_equals_brute_force(size):
    circuit = tiny(*size, unitary=False)
    with torch.no_grad():
        torch.testing.assert_close(
            circuit.log_partition(), circuit(all_images(circuit)).logsumexp(0), atol=1e-10, rtol=0
        )


@given(st.integers(1, 7), st.integers(2, 7), st.integers(1, 3), st.integers(0, 100))
@settings(max_examples=25)
def test_likelihood_equals_the_definition(height, width, units, seed):
    circuit = tiny(height, width, units, 4, unitary=seed % 2 == 0, seed=seed)
    images = torch.randint(0, 4, (3, height, width), generator=torch.Generator().manual_seed(seed))
    expected = torch.stack([amplitude(circuit, image) for image in images]).abs().log() * 2
    torch.testing.assert_close(circuit(images).detach(), expected, atol=1e-9, rtol=1e-9)


def test_a_contraction_does_not_depend_on_the_blocks():
    draws = torch.Generator().manual_seed(0)
    weight, children = (
        torch.randn(shape, dtype=torch.complex128, generator=draws).requires_grad_()
        for shape in ((7, 3, 81), (7, 4, 3, 5))
    )
    results = []
    for block in (1, 2**30):
        out = contraction.contract(weight, children, block)
        results.append([out.detach(), *torch.autograd.grad(out.abs().sum(), (weight, children))])
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("size", [(2, 2, 2, 2), (2, 3, 2, 2), (3, 3, 2, 2), (1, 5, 2, 3), (1, 2, 2, 2)])
@pytest.mark.parametrize("unitary", [True, False])
def test_gradients(size, unitary):
    circuit = tiny(*size, unitary=unitary)
    images = torch.randint(0, size[3], (2, *size[:2]))  # twice the same column of a leaf, now and then
    names = [name for name, _ in circuit.named_parameters()]

    def likelihood(*values):
        return torch.func.functional_call(circuit, dict(zip(names, values, strict=True)), (images,))

    values = tuple(parameter.detach().clone().requires_grad_() for parameter in circuit.parameters())
    assert torch.autograd.gradcheck(likelihood, values)


def test_gradient_of_the_partition_function():
    circuit = tiny(2, 3, 2, 3, unitary=False)
    circuit.log_partition().backward()
    exact = [parameter.grad.clone() for parameter in circuit.parameters()]
    circuit.zero_grad()
    circuit(all_images(circuit)).logsumexp(0).backward()
    torch.testing.assert_close(exact, [parameter.grad for parameter in circuit.parameters()])


@pytest.mark.parametrize("unitary", [True, False])
def test_inner_product_of_each_matrix_with_its_gradient_is_minus_two(unitary):
    # c is linear in every matrix, so log |c|² grows by 2 log t along W → tW and is constant along W → exp(iθ)W,
    # on the manifold and off it: ⟨W, G⟩ = −2 exactly, real and imaginary part
    circuit = tiny(7, 7, 3, 8, unitary=unitary)
    circuit(torch.randint(0, 8, (6, 7, 7))).mean().neg().backward()
    for parameter in circuit.parameters():
        inner = (parameter.detach().conj() * parameter.grad).sum((-2, -1))
        torch.testing.assert_close(inner, torch.full_like(inner, -2), atol=1e-12, rtol=0)


def test_single_precision_agrees_with_double():
    double = SquaredUnitaryCircuit(28, 28, 4, dtype=torch.complex128)
    single = SquaredUnitaryCircuit(28, 28, 4)
    single.load_state_dict(double.state_dict())
    images = torch.randint(0, 256, (8, 28, 28), dtype=torch.uint8)
    for circuit in (single, double):
        circuit(images).mean().neg().backward()
    assert single(images).dtype == torch.float32
    torch.testing.assert_close(single(images).double(), double(images), atol=5e-3, rtol=0)  # of about −4300
    for one, two in zip(single.parameters(), double.parameters(), strict=True):
        assert (one.grad - two.grad).norm() < 2e-4 * two.grad.norm()
    assert abs(single.log_partition().item()) < 1e-3
    assert abs(double.log_partition().item()) < 1e-10


@pytest.mark.parametrize("factor", [1e-25, 1e25])
def test_extreme_weights_neither_overflow_nor_vanish(factor):
    # 1e25 for each of 1049 matrices: p is 10^±52450 times what it was, far outside any floating-point format
    circuit = SquaredUnitaryCircuit(28, 28, 2)
    images = torch.randint(0, 256, (4, 28, 28))
    before = circuit(images).detach()
    with torch.no_grad():
        for parameter in circuit.parameters():
            parameter.mul_(factor)
    matrices = sum(len(parameter) for parameter in circuit.parameters())
    shift = 2 * matrices * math.log(factor)
    after = circuit(images)
    torch.testing.assert_close(after.detach(), before + shift, rtol=1e-5, atol=0)
    assert circuit.log_partition().item() == pytest.approx(shift, rel=1e-6)
    after.mean().neg().backward()
    for parameter in circuit.parameters():
        inner = (parameter.detach().conj() * parameter.grad).sum((-2, -1))
        torch.testing.assert_close(inner.real, torch.full_like(inner.real, -2), atol=1e-3, rtol=0)


def test_an_impossible_image_has_likelihood_zero():
    circuit = tiny(2, 2, 2, 3, unitary=True)
    with torch.no_grad():
        circuit.leaves[0, :, 1] = 0
    images = torch.tensor([[[1, 0], [0, 0]], [[0, 0], [0, 0]]])
    assert circuit(images)[0].item() == -math.inf
    assert circuit(images)[1].isfinite()


def test_pogo_trains_it_and_keeps_it_normalised():
    circuit = SquaredUnitaryCircuit(4, 4, 3, 8, dtype=torch.complex128)
    images = torch.randint(0, 2, (64, 1, 4, 4), dtype=torch.uint8) * 7
    images[:, :, 2:] = images[:, :, :2]
    opt = oo.POGO(circuit.parameters(), lr=0.1)
    bits = []
    for _ in range(80):
        opt.zero_grad()
        likelihood = circuit(images)
        likelihood.mean().neg().backward()
        opt.step()
        bits.append(bits_per_dimension(likelihood, circuit).item())
    assert bits[0] > 2.5
    assert bits[-1] < 1.3
    assert abs(circuit.log_partition().item()) < 1e-3


def test_bits_per_dimension():
    circuit = tiny(2, 3, 2, 4, unitary=True)
    uniform = torch.full((5,), -6 * math.log(4))
    assert bits_per_dimension(uniform, circuit).item() == pytest.approx(2)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 4, 4), "integers from 0 to 7"),
        (torch.zeros(3, 4, 5, dtype=torch.int64), r"shape \(examples, 4, 4\)"),
        (torch.zeros(16, dtype=torch.int64), r"shape \(examples, 4, 4\)"),
    ],
)
def test_bad_images(images, message):
    with pytest.raises(ValueError, match=message):
        SquaredUnitaryCircuit(4, 4, 2, 8)(images)


@pytest.mark.parametrize("bad", [{"units": 9, "states": 8}, {"units": 0}, {"units": 2, "dtype": torch.float32}])
def test_bad_construction(bad):
    with pytest.raises(ValueError, match=r"units|dtype"):
        SquaredUnitaryCircuit(4, 4, **bad)
