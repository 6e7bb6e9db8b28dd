"""Gradients that are not finite or sparse, and exceptions in the middle: no matrix is half written."""

import copy

import pytest
import torch

from tests.conformance.methods import every_method, point, set_gradients, steps


@every_method
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_gradient_that_is_not_finite_freezes_its_matrix_alone(make, bad):
    """Value and state of the matrix stay; its neighbours, and its own later steps, are as if nothing had been."""
    struck, spared = point(3, 4, 6, dtype=torch.float64), point(3, 4, 6, dtype=torch.float64)
    opt, opt_spared = make([struck]), make([spared])
    for t in range(6):
        set_gradients([struck], t)
        spared.grad = struck.grad.clone()
        if t in (0, 3):
            before = struck.detach().clone()
            struck.grad[1, 2, 3] = bad
            opt.step()
            assert torch.equal(struck[1], before[1])
            spared.grad[1] = 0  # whatever: only the neighbours are compared
        else:
            opt.step()
        opt_spared.step()
    torch.testing.assert_close(struck[[0, 2]], spared[[0, 2]], rtol=0, atol=1e-13)
    assert torch.isfinite(struck).all()
    assert all(torch.isfinite(value).all() for value in opt.state[struck].values())
    assert opt.drift()[0].skipped == 2
    assert opt.drift()[0].matrices == 3

    again = point(3, 4, 6, dtype=torch.float64)
    opt_again = make([again])
    for t in (1, 2, 4, 5):
        set_gradients([again], t)
        # the gradient of the run above depends on the parameter, which is equal by induction
        opt_again.step()
    torch.testing.assert_close(struck[1], again[1], rtol=0, atol=1e-13)


@every_method
def test_a_sparse_gradient_raises_before_anything_is_changed(make):
    first, second = point(4, 6), point(4, 6, seed=1)
    opt = make([first, second])
    set_gradients([first, second])
    second.grad = None
    second.register_post_accumulate_grad_hook(lambda p: None)
    embedding = torch.nn.Embedding(4, 6, sparse=True)
    embedding.weight = second
    embedding(torch.tensor([1])).sum().backward()
    before = [p.detach().clone() for p in (first, second)]
    with pytest.raises(RuntimeError, match=r"parameter 1 of group 0 \(4×6\) has a sparse gradient"):
        opt.step()
    assert torch.equal(first, before[0])
    assert torch.equal(second, before[1])
    assert not opt.state


@every_method
def test_a_sparse_gradient_of_an_ordinary_group_raises_before_anything_is_changed(make):
    constrained, other = point(4, 6), torch.nn.Parameter(torch.ones(3))
    opt = make([{"params": [constrained]}, {"params": [other], "algorithm": "adamw"}])
    set_gradients([constrained])
    other.grad = torch.ones(3).to_sparse()
    before = constrained.detach().clone()
    with pytest.raises(RuntimeError, match=r"parameter 0 of group 1 \(3\) has a sparse gradient"):
        opt.step()
    assert torch.equal(constrained, before)
    assert not opt.state


@every_method
def test_an_exception_in_the_middle_leaves_nothing_half_written(make, monkeypatch):
    params = [point(4, 6), point(3, 3, seed=1)]
    opt = make(params)
    steps(opt, params, 2)
    values = [p.detach().clone() for p in params]
    state = copy.deepcopy([opt.state[p] for p in params])
    update = type(opt).update_whole

    def failing(x, *args):
        if x.shape[-1] == 3:
            raise RuntimeError("out of memory")
        return update(x, *args)

    monkeypatch.setattr(type(opt), "update_whole", staticmethod(failing))
    set_gradients(params, 2)
    with pytest.raises(RuntimeError, match="out of memory"):
        opt.step()
    assert torch.equal(params[1], values[1])
    for name, value in state[1].items():
        assert torch.equal(opt.state[params[1]][name], value)
    # the other bucket was written whole: value and state
    assert not torch.equal(params[0], values[0])
    assert int(opt.state[params[0]]["step"]) == 3
