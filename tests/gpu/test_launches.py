"""What a step launches on a GPU: budgets, and nothing that waits for the device. Counted on fake CUDA tensors."""

import re

import pytest
import torch

import orthoptim as oo
from orthoptim_experiments.bench import contenders
from orthoptim_experiments.bench.launches.counter import LaunchCounter
from orthoptim_experiments.bench.launches.fake_cuda import fake_cuda
from orthoptim_experiments.bench.launches.study import COUNTED, count, totals

pytest.importorskip("triton")  # which makes one kernel of what is computed per matrix

BUDGETS = {"W1": 4, "W2": 45, "W3": 130, "W3b": 60, "W4": 45, "W5": 160, "W6": 45, "W7": 300}


@pytest.mark.parametrize("name", BUDGETS)
def test_launches_stay_within_the_budget(name):
    found = totals(count(contenders.ours("safe", oo.VAdam()), COUNTED[name]))
    assert found.launches <= BUDGETS[name]
    assert (found.copies, found.syncs) == (0, 0)


SHAPES = [(8, 3, 3), (2, 32, 32), (32, 64), (64, 32), (4, 80)]
LANDINGS = ["safe", "strict", "half", "root", "argmin", "newton-schulz"]
BASES = {
    "sgd": oo.SGD(),
    "momentum": oo.SGD(momentum=0.9),
    "vadam": oo.VAdam(),
    "adam": oo.Adam(),
    "muon": oo.Muon(),
    "bb": oo.BB(),
    "cg": oo.CG(),
    "lbfgs": oo.LBFGS(history_size=2),
}
VARIANTS = {
    **{f"pogo-{landing}": (oo.POGO, {"landing": landing}) for landing in LANDINGS},
    "pogo-mixed": (oo.POGO, {"matmul_precision": "mixed"}),
    "landing": (oo.Landing, {}),
    "slpg": (oo.SLPG, {}),
    "slpg-bb": (oo.SLPG, {"barzilai_borwein": True}),
    "landingpc-without-projection": (oo.LandingPC, {"tau": None}),
    "rsdm": (oo.RSDM, {"r": 2}),
    "rsdm-permutation": (oo.RSDM, {"r": 2, "sampling": "permutation"}),
    **{
        f"rgd-{retraction}-{metric}": (oo.RGD, {"retraction": retraction, "metric": metric})
        for retraction in ("qr", "cholesky")
        for metric in ("euclidean", "canonical")
    },
    **{f"stiefelmuon-{landing}": (oo.StiefelMuon, {"landing": landing}) for landing in ("safe", "strict", "half")},
    "stiefelmuon-quintic-full": (oo.StiefelMuon, {"ns_coefficients": (3.4445, -4.7750, 2.0315), "ns_dtype": "full"}),
}
"""Every method with each of its options that changes what is launched, but for the exceptions below."""

EXCEPTIONS = {
    "landingpc": (oo.LandingPC, {}),
    **{f"rgd-{name}": (oo.RGD, {"retraction": name}) for name in ("polar", "cayley", "cayley-iterative")},
}
"""What waits for the device, see docs/guides/gpu.md."""

REFUSED = ("pogo-half", "pogo-root", "pogo-argmin", "pogo-newton-schulz", "pogo-mixed")
"""By bases that take differences of gradients: landings that do not clip, and reduced products."""

EVERY = {
    f"{variant}-{base}": (method, {**options, "base": BASES[base]})
    for variant, (method, options) in VARIANTS.items()
    for base in BASES
    if base not in ("bb", "cg", "lbfgs") or variant not in REFUSED
}
METHODS = {
    name: EVERY[name] for name in EVERY if name.startswith(("pogo-safe", "stiefelmuon-safe")) or name.endswith("-vadam")
} | {f"{name}-default": variant for name, variant in VARIANTS.items()}
"""Of these, each method with VAdam and with its own base, and each base with POGO and StiefelMuon."""


def counted_step(make, shapes=SHAPES, dtype=torch.float32, lr=0.1):
    """The counts of a step that is not the first; ``lr`` is a number, or makes a tensor."""
    with fake_cuda():
        params = [torch.nn.Parameter(torch.empty(shape, device="cuda", dtype=dtype)) for shape in shapes]
        opt = make(params, lr if isinstance(lr, float) else lr())
        for group in opt.param_groups:
            for param in group["params"]:
                param.grad = torch.empty_like(param)
        with LaunchCounter():
            opt.step()
        with LaunchCounter() as counter:
            opt.step()
    return counter.totals()


@pytest.mark.parametrize("name", METHODS)
def test_a_step_copies_nothing_and_waits_for_nothing(name):
    method, options = METHODS[name]
    found = counted_step(lambda params, lr: method(params, lr, **options), SHAPES[1:3])
    assert (found.copies, found.syncs) == (0, 0)


def tensor_lr():
    return torch.full((), 0.1, device="cuda")


@pytest.mark.parametrize("name", ["pogo-safe-vadam", "landing-default", "stiefelmuon-safe-default", "rsdm-default"])
def test_nor_does_it_with_a_learning_rate_on_the_device(name):
    method, options = METHODS[name]
    found = counted_step(lambda params, lr: method(params, lr, **options), SHAPES[1:3], lr=tensor_lr)
    assert (found.copies, found.syncs) == (0, 0)


@pytest.mark.soak
@pytest.mark.parametrize("lr", [0.1, tensor_lr], ids=["number", "tensor"])
@pytest.mark.parametrize("name", EVERY)
def test_nor_does_it_for_any_shape(name, lr):
    method, options = EVERY[name]
    found = counted_step(lambda params, rate: method(params, rate, **options), lr=lr)
    assert (found.copies, found.syncs) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("landing", ["safe", "strict"])
def test_no_dtype_copies_or_waits(dtype, landing):
    found = counted_step(lambda params, lr: oo.POGO(params, lr, landing=landing), dtype=dtype)
    assert (found.copies, found.syncs) == (0, 0)


@pytest.mark.parametrize(
    "algorithm", [{"algorithm": "adamw", "capturable": True}, {"algorithm": "sgd", "momentum": 0.9}]
)
def test_ordinary_groups_copy_and_wait_for_nothing(algorithm):
    def make(params, lr):
        return oo.POGO([{"params": params[:2]}, {"params": params[2:], **algorithm}], lr)

    found = counted_step(make, lr=tensor_lr)
    assert (found.copies, found.syncs) == (0, 0)


def test_an_optimizer_is_capturable_as_a_whole():
    """Ordinary groups take the value of the optimizer: nothing is counted or corrected on the host."""

    def make(params, lr):
        return oo.POGO([{"params": params[:2]}, {"params": params[2:], "algorithm": "adamw"}], lr, capturable=True)

    found = counted_step(make, lr=tensor_lr)
    assert (found.copies, found.syncs) == (0, 0)
    params = [torch.nn.Parameter(torch.eye(3)), torch.nn.Parameter(torch.ones(2))]
    for capturable in (False, True):
        groups = [{"params": params[:1]}, {"params": params[1:], "algorithm": "adamw"}]
        opt = oo.POGO(groups, 0.1, capturable=capturable)
        assert [group["capturable"] for group in opt.param_groups] == [capturable] * 2


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_the_documented_exceptions_wait_for_a_decomposition(name):
    method, options = EXCEPTIONS[name]
    assert counted_step(lambda params, lr: method(params, lr, **options), SHAPES[1:3]).syncs > 0
    assert re.search("waits? for the device", method.__doc__, re.IGNORECASE)
    with pytest.raises(ValueError, match="capturable"):
        method([torch.nn.Parameter(torch.eye(3))], 0.1, capturable=True, **options)


def test_every_method_is_counted():
    counted = {method for method, _ in (*VARIANTS.values(), *EXCEPTIONS.values())}
    library = {
        method for method in vars(oo).values() if isinstance(method, type) and issubclass(method, oo.Orthoptimizer)
    }
    assert counted == library - {oo.Orthoptimizer}


def test_tall_matrices_are_not_copied_one_by_one():
    wide, tall = (counted_step(lambda params, lr: oo.POGO(params, lr), [shape] * 60) for shape in ((16, 48), (48, 16)))
    assert tall.launches <= wide.launches + 4


def test_parameters_of_several_shapes_share_a_block():
    like = counted_step(oo.POGO, [(6, 64, 64)])
    mixed = counted_step(oo.POGO, [(2, 64, 64), (64, 64), (3, 1, 64, 64)])
    assert mixed.launches <= like.launches + 3  # matrices and gradients are gathered, and matrices written


def test_the_cap_of_a_block_is_an_option():
    one = counted_step(oo.POGO, [(64, 128, 128)])
    many = counted_step(lambda params, lr: oo.POGO(params, lr, block_cap_mb=1), [(64, 128, 128)])
    assert many.launches > 3 * one.launches
