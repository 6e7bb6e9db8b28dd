"""Construction checks: what cannot be trained as asked is refused, by name, before anything is changed."""

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import every_method, point


def refused(make, param, match, **options):
    before = param.detach().clone() if param.layout is torch.strided else None
    with pytest.raises(ValueError, match=match):
        make([("attn.weight", param)], **options)
    if before is not None:
        assert torch.equal(param.detach().nan_to_num(), before.nan_to_num())


@every_method
def test_not_orthonormal(make):
    refused(
        make,
        torch.nn.Parameter(torch.randn(8, 8)),
        r"parameter 'attn.weight' \(8×8\) is not orthonormal \(distance .*\): call orthoptim.orthogonalize_",
    )


@every_method
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_not_finite(make, bad):
    param = point(4, 4)
    param.data[1, 2] = bad
    refused(make, param, r"parameter 'attn.weight' \(4×4\) is not finite")


@every_method
def test_wrong_shapes(make):
    refused(make, torch.nn.Parameter(torch.ones(3)), r"'attn.weight' \(3\) has 1 dims")
    refused(make, torch.nn.Parameter(torch.ones(())), r"'attn.weight' \(scalar\) has 0 dims")
    refused(make, torch.nn.Parameter(torch.ones(0, 3)), r"'attn.weight' \(0×3\) has no entries")
    refused(make, point(4, 6), "view 'kernels' is of 4-d weights", view="kernels")
    refused(make, point(4, 6), "seen as 4×6, whose columns are too many", side="columns")
    refused(make, point(6, 4), "seen as 6×4, whose rows are too many", side="rows")
    refused(make, point(4, 6), "Invalid view: 'rows'", view="rows")
    refused(make, point(4, 6), "Invalid side: 'both'", side="both")


@every_method
def test_kinds_of_tensor(make):
    refused(make, torch.nn.Parameter(torch.ones(1, 3).expand(2, 3)), r"'attn.weight' \(2×3\) is expanded")
    refused(make, torch.eye(3).to_sparse().requires_grad_(), r"'attn.weight' \(3×3\) has layout torch.sparse_coo")
    refused(make, torch.ones(1, 3, dtype=torch.int64), r"'attn.weight' \(1×3\) has dtype torch.int64")


@every_method
@pytest.mark.parametrize("lr", [-0.1, torch.inf, torch.nan, torch.tensor(-1.0)])
def test_learning_rate(make, lr):
    refused(make, point(4, 6), "Invalid learning rate", lr=lr)


@every_method
def test_learning_rate_of_two_elements(make):
    refused(make, point(4, 6), "1-element", lr=torch.ones(2))


@every_method
def test_learning_rate_missing(make):
    refused(make, point(4, 6), "didn't specify a value of required optimization parameter lr", lr=None, base=oo.SGD())


@every_method
def test_weight_decay(make):
    param = point(4, 6)
    make([{"params": [param], "weight_decay": 0.0}])
    with pytest.raises(ValueError, match="group 0: weight_decay must be 0 for orthogonal parameters"):
        make([{"params": [param], "weight_decay": 0.1}])


@every_method
def test_unknown_algorithm_and_base(make):
    with pytest.raises(ValueError, match="Invalid algorithm of group 0: 'adam'"):
        make([{"params": [point(4, 6)], "algorithm": "adam"}])
    with pytest.raises(ValueError, match="Invalid base: 'lion'"):
        make([{"params": [point(4, 6)], "base": "lion"}])
    with pytest.raises(TypeError, match="base must be a base optimizer such as"):
        make([{"params": [point(4, 6)], "base": torch.optim.SGD}])


@every_method
def test_bad_hyperparameters_of_the_base_in_a_group(make):
    with pytest.raises(ValueError, match="Invalid beta parameter at index 0: 2"):
        make([{"params": [point(4, 6)], "base": "vadam", "betas": (2.0, 0.9)}])


@every_method
def test_a_group_that_is_refused_is_not_added(make):
    opt = make([point(4, 6)])
    with pytest.raises(ValueError, match="parameter 0 of group 1"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    assert len(opt.param_groups) == 1


@every_method
def test_nothing_is_repaired_when_a_neighbour_is_refused(make):
    near = torch.nn.Parameter(point(4, 4).detach() * 1.0001)
    before = near.detach().clone()
    with pytest.raises(ValueError, match="not orthonormal"):
        make([near, torch.nn.Parameter(torch.randn(4, 4))])
    assert torch.equal(near, before)


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_within_rounding_nothing_is_touched(make, dtype, recwarn):
    param = point(16, 32, dtype=dtype)
    before = param.detach().clone()
    make([param])
    assert torch.equal(param, before)
    assert not recwarn


@every_method
def test_nearly_orthonormal_is_repaired_silently(make, recwarn):
    param = torch.nn.Parameter(point(4, 6).detach() * (1 + 1e-4))
    make([param])
    assert oo.distance(param) < 1e-6
    assert not recwarn


@every_method
def test_roughly_orthonormal_is_repaired_with_a_warning(make):
    orthonormal = point(4, 6).detach()
    param = torch.nn.Parameter(orthonormal * 1.3)  # ‖XXᴴ−I‖₂ = .69, ‖XXᴴ−I‖_F = 1.38
    with pytest.warns(UserWarning, match=r"'w' \(4×6\) was not orthonormal \(distance 1.38\)"):
        make([("w", param)])
    torch.testing.assert_close(param.detach(), orthonormal, rtol=0, atol=1e-6)


@every_method
def test_half_precision_rounding_is_no_reason_to_warn(make, recwarn):
    make([point(64, 64, dtype=torch.bfloat16)])
    assert not recwarn


@every_method
def test_meta_parameters_are_taken_on_trust(make):
    make([torch.nn.Parameter(torch.empty(4, 6, device="meta"))])
