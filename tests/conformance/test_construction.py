"""Construction checks: what cannot be trained as asked is refused, by name, before anything is changed."""

import inspect
import re

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import clones, every_method, point, set_gradients


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
    for shape in ((0, 3), (3, 0), (2, 0, 3)):
        refused(make, torch.nn.Parameter(torch.ones(shape)), r"'attn.weight' .* has no entries: it is seen as")
    refused(make, torch.nn.Parameter(torch.ones(2, 3, 1, 1)), "'attn.weight' .* has kernels 1×1", view="kernels")
    refused(make, point(4, 6), "view 'kernels' is of the weights of convolutions", view="kernels")
    refused(make, point(4, 6), "seen as 4×6, whose columns are too many", side="columns")
    refused(make, point(6, 4), "seen as 6×4, whose rows are too many", side="rows")
    refused(make, point(4, 6), "Invalid view: 'rows'", view="rows")
    refused(make, point(4, 6), "Invalid side: 'both'", side="both")


@every_method
def test_kinds_of_tensor(make):
    refused(make, torch.nn.Parameter(torch.ones(1, 3).expand(2, 3)), r"'attn.weight' \(2×3\) is expanded")
    refused(make, torch.eye(3).to_sparse().requires_grad_(), r"'attn.weight' \(3×3\) has layout torch.sparse_coo")
    for dtype in (torch.int64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32):
        param = torch.ones(1, 3).to(dtype)
        with pytest.raises(ValueError, match=rf"'attn.weight' \(1×3\) has dtype {dtype}, which cannot be orthonormal"):
            make([("attn.weight", param)])


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
def test_meta_parameters_are_taken_on_trust_with_a_warning(make):
    with pytest.warns(UserWarning, match=r"parameter 'w' \(4×6\) is on the meta device and cannot be checked"):
        make([("w", torch.nn.Parameter(torch.empty(4, 6, device="meta")))])


@every_method
@pytest.mark.parametrize(
    ("option", "value"),
    [("betas", (0.9, 0.9)), ("momentum", 0.9), ("nesterov", True), ("dampening", 0.1), ("steps", 3), ("beta1", 0.9)],
)
def test_options_of_the_base_are_sent_to_the_base(make, option, value):
    if option in make([point(4, 6)]).base_options:
        pytest.skip("the method takes it and gives it to its base")
    with pytest.raises(TypeError, match=rf"{option}' to its base optimizer: pass base=orthoptim\.\w+\(\w+=\.\.\.\)"):
        make([point(4, 6)], **{option: value})


@every_method
def test_options_that_nobody_has(make):
    with pytest.raises(TypeError, match="weight_decay must be 0 for orthogonal parameters, whose norm is fixed"):
        make([point(4, 6)], weight_decay=0.1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'maximise'; did you mean 'maximize'"):
        make([point(4, 6)], maximise=True)
    with pytest.raises(TypeError, match=r"keyword argument 'fused'; its options are .*compile"):
        make([point(4, 6)], fused=True)


@every_method
@pytest.mark.parametrize("option", ["maximize", "compile"])
@pytest.mark.parametrize("value", ["yes", None, 2, 0.5])
def test_switches_are_true_or_false(make, option, value):
    refused(make, point(4, 6), f"Invalid {option} value: {value!r}", **{option: value})


@every_method
def test_a_model_is_not_its_parameters(make):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    with pytest.raises(TypeError, match=r"takes parameters, not a Sequential: pass model.parameters\(\), or"):
        make(model)
    with pytest.raises(TypeError, match="group 0 takes parameters, not a Linear"):
        make([{"params": model[0]}])


@every_method
def test_a_consumed_generator(make):
    model = oo.orthogonalize_(torch.nn.Linear(3, 3, bias=False), {"weight": "matrix"})
    for params in (model.parameters(), model.named_parameters()):
        make(params)
        with pytest.raises(ValueError, match="got an iterator without parameters: if it has been used before"):
            make(params)
        with pytest.raises(ValueError, match="group 0 got an iterator without parameters"):
            make([{"params": params}])


@every_method
@pytest.mark.parametrize("algorithm", ["constrained", "adamw"])
def test_names_for_all_or_for_none(make, algorithm):
    more = {} if algorithm == "constrained" else {"algorithm": algorithm}
    opt = make([("w", point(4, 6))])
    with pytest.raises(ValueError, match="group 1 gives parameters without names, but the groups before it have them"):
        opt.add_param_group({"params": [point(4, 6)], **more})
    opt.add_param_group({"params": [("v", point(4, 6))], **more})
    opt = make([point(4, 6)])
    with pytest.raises(ValueError, match="group 1 gives parameters with names, but the groups before it have none"):
        opt.add_param_group({"params": [("v", point(4, 6))], **more})
    opt.add_param_group({"params": point(4, 6), **more})
    assert len(opt.param_groups) == 2


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_empty_batch_is_legal_and_steps_nothing(make, dtype):
    empty, full = torch.nn.Parameter(torch.empty(0, 4, 6, dtype=dtype)), point(4, 6, dtype=dtype)
    alone, both = clones([full]), [empty, full]
    reference, opt = make(alone), make(both)
    for t in range(2):
        set_gradients([full, empty], t)
        set_gradients(alone, t)
        opt.step()
        reference.step()
    assert torch.equal(full, alone[0])
    (mine,), (expected,) = opt.drift(), reference.drift()
    assert mine._replace(name="") == expected._replace(name="")
    assert [bucket.matrices for bucket in opt.plan()] == [1]
    other = make([empty, full])
    other.load_state_dict(opt.state_dict())
    only = make([empty])
    only.step()
    assert only.drift()[0].matrices == 0
    assert only.plan() == []


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (oo.POGO, {"landing_steps": 1.5}, "Invalid landing_steps value: 1.5; it must be an integer"),
        (oo.POGO, {"landing_steps": True}, "Invalid landing_steps value: True"),
        (oo.POGO, {"landing_steps": 0}, "Invalid landing_steps value: 0; it must be at least 1"),
        (oo.POGO, {"landing": "moon"}, "Invalid landing: 'moon'"),
        (oo.RGD, {"metric": ["euclidean"]}, "Invalid metric: "),
        (oo.RGD, {"retraction": []}, "Invalid retraction: "),
        (oo.RSDM, {"r": 2.5}, "Invalid r value: 2.5; it must be an integer"),
        (oo.RSDM, {"r": True}, "Invalid r value: True"),
        (oo.RSDM, {"r": "2"}, "Invalid r value: '2'"),
        (oo.RSDM, {"r": 2, "seed": "x"}, "Invalid seed value: 'x'; it must be an integer"),
        (oo.RSDM, {"r": 2, "seed": 1.0}, "Invalid seed value: 1.0"),
        (oo.RSDM, {"r": 2, "seed": None}, "Invalid seed value: None"),
        (oo.RSDM, {"r": 2, "sampling": None}, "Invalid sampling: None"),
        (oo.Landing, {"lam": torch.inf}, "Invalid lam value: inf"),
        (oo.Landing, {"lam": torch.nan}, "Invalid lam value: nan"),
        (oo.Landing, {"lam": 0}, "Invalid lam value: 0; it must be positive"),
        (oo.Landing, {"lam": "1"}, "Invalid lam value: '1'"),
        (oo.Landing, {"eps": 1.0}, "Invalid eps value: 1.0"),
        (oo.Landing, {"eps": torch.nan}, "Invalid eps value: nan"),
        (oo.LandingPC, {"lam": torch.inf}, "Invalid lam value: inf"),
        (oo.LandingPC, {"tau": torch.nan}, "Invalid tau value: nan"),
        (oo.LandingPC, {"tau": 0}, "Invalid tau value: 0"),
        (oo.LandingPC, {"coupled": "no"}, "Invalid coupled value: 'no'"),
        (oo.SLPG, {"barzilai_borwein": "no"}, "Invalid barzilai_borwein value: 'no'"),
        (oo.SLPG, {"project_at_end": None}, "Invalid project_at_end value: None"),
    ],
)
def test_options_of_methods_are_checked_when_built(method, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        method([point(4, 6)], 0.1, **options)
    with pytest.raises(ValueError, match=re.escape(message)):  # and in a group
        method([{"params": [point(4, 6)], **options}], 0.1, **({"r": 2} if method is oo.RSDM else {}))


def test_a_method_of_a_user_may_take_any_keywords():
    class Mine(oo.POGO):
        def __init__(self, params, **others):
            super().__init__(params, 0.1, landing=others["how"])

    assert Mine([point(4, 6)], how="strict").param_groups[0]["landing"] == "strict"


def test_help_shows_the_options():
    assert "landing" in inspect.signature(oo.POGO).parameters
