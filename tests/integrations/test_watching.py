"""What the callbacks of all trainers share."""

import pytest
import torch
from torch import nn

import orthoptim as oo
from orthoptim.integrations.watching import DriftWatch


def optimizers():
    for wrapped in (False, True):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        patterns = {"0.weight": "matrix", "1.weight": "matrix"}
        oo.orthogonalize_(model, patterns)
        if wrapped:
            yield model, oo.wrap(torch.optim.SGD(model.parameters(), lr=0.1), patterns, model=model)
        else:
            yield model, oo.POGO(oo.param_groups(model, patterns, lr=0.1, rest={"lr": 0.1}))


class Holder:
    """What accelerate and Lightning put around an optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_numbers_are_those_of_drift():
    for _, opt in optimizers():
        watch = DriftWatch()
        assert watch.measure(Holder(opt)) == opt.drift().as_dict()
        assert not watch.exceeded


@pytest.mark.parametrize("action", ["warn", "stop", "project"])
def test_a_matrix_beyond_the_limit(action):
    for model, opt in optimizers():
        with torch.no_grad():
            model[1].weight.mul_(1.1)
        far = oo.distance(model[1].weight)
        watch = DriftWatch(limit=1e-3, action=action)
        with pytest.warns(UserWarning, match=r"parameter '1\.weight' is .* from orthonormal, beyond the limit 0\.001"):
            watch.measure(opt)
        assert watch.exceeded
        assert oo.distance(model[1].weight) < 1e-5 if action == "project" else oo.distance(model[1].weight) == far
        if action == "project":
            watch.measure(opt)
            assert not watch.exceeded


def test_a_matrix_of_nan_is_beyond_every_limit():
    model, opt = next(optimizers())
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    watch = DriftWatch(limit=1e9)
    with pytest.warns(UserWarning, match="nan from orthonormal"):
        watch.measure(opt)
    assert watch.exceeded


def test_other_optimizers_have_no_drift():
    assert DriftWatch().measure(torch.optim.SGD([nn.Parameter(torch.eye(2))], lr=0.1)) == {}


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": "a"}, {"action": "explode"}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match="Invalid"):
        DriftWatch(**options)
