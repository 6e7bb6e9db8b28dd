"""What ranks do together: they share work, sum, agree, and notice when one of them has failed alone."""

import time
from datetime import timedelta

import pytest
import torch

from orthoptim_experiments.harness import ranks, replicas
from tests.orthoptim_experiments.together import together


def parts():
    return [list(range(count))[ranks.local_slice(count)] for count in (0, 1, 7, 12)]


def test_parts_are_even_and_lose_nothing():
    found = together(3, parts)
    for count, own in zip((0, 1, 7, 12), zip(*found, strict=True), strict=True):
        assert [item for items in own for item in items] == list(range(count))
        assert max(map(len, own)) - min(map(len, own)) <= 1


def module(draws):
    """Real and complex parameters, one that is laid out otherwise, one without a gradient."""
    shapes = {"matrix": (3, 4), "images": (2, 3, 4, 5), "frozen": (2,), "unitary": (2, 2, 3)}
    params = {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}
    params["images"] = params["images"].to(memory_format=torch.channels_last)
    params["unitary"] = torch.complex(params["unitary"], params["unitary"] + 1)
    found = torch.nn.ParameterDict(params)
    for name, param in found.items():
        param.grad = None if name == "frozen" else param.detach().clone() * 2
    return found


def add_up():
    own = module(torch.Generator().manual_seed(ranks.rank()))
    loss = ranks.sum_gradients(own.values(), torch.tensor(float(ranks.rank() + 1)))
    grads = {name: param.grad for name, param in own.items()}
    ranks.broadcast_parameters(own)
    return float(loss), grads, {name: param.detach() for name, param in own.items()}


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_gradients_and_loss_are_sums_with_the_same_bits_everywhere(world_size):
    modules = [module(torch.Generator().manual_seed(rank)) for rank in range(world_size)]
    found = together(world_size, add_up)
    assert [loss for loss, _, _ in found] == [world_size * (world_size + 1) / 2] * world_size
    for _, grads, params in found:
        assert grads["frozen"] is None
        for name in ("matrix", "images", "unitary"):
            torch.testing.assert_close(grads[name], sum(each[name].grad for each in modules))
            assert torch.equal(grads[name], found[0][1][name])
            assert torch.equal(params[name], modules[0][name])


def settle():
    rank = ranks.rank()
    return {
        "first": ranks.broadcast_from_first({"rank": rank}),
        "largest": ranks.all_reduce_max(rank, 5 - rank, 0),
        "total": ranks.all_reduce_sum(torch.tensor([rank, 1])).tolist(),
        "same": ranks.all_equal("yes"),
        "different": ranks.all_equal(f"{rank}"),
    }


def test_what_ranks_settle():
    expected = {"first": {"rank": 0}, "largest": (2, 5, 0), "total": [3, 3], "same": True, "different": False}
    assert together(3, settle) == [expected] * 3


def test_one_process_alone_agrees_with_itself():
    assert settle() == {"first": {"rank": 0}, "largest": (0, 5, 0), "total": [0, 1], "same": True, "different": True}
    loss = torch.tensor(2.0)
    assert ranks.sum_gradients([], loss) is loss
    ranks.confirm_failure(ValueError())
    assert replicas.common_digest({"x": torch.zeros(1)}) == ""


def fail(failing, patience):
    try:
        if ranks.rank() in failing:
            ranks.confirm_failure(ValueError(f"on rank {ranks.rank()}"), timedelta(seconds=patience))
            return "all failed"
        time.sleep(3 * patience)
        return "went on"
    except ranks.LostError as error:
        return str(error)


def test_a_failure_of_all_is_one_of_the_trial_and_that_of_one_is_not():
    assert together(3, fail, (0, 1, 2), 60.0) == ["all failed"] * 3
    assert together(2, fail, (0,), 0.5) == ["ValueError: on rank 0", "went on"]
    assert together(2, fail, (1,), 0.5) == ["went on", "ValueError: on rank 1"]
    assert together(1, fail, (0,), 0.0) == ["all failed"]


def digests():
    same = replicas.common_digest({"x": torch.arange(3), "time": ranks.rank()})
    with pytest.raises(replicas.ReplicasError):
        replicas.common_digest({"x": torch.tensor([0.0, 1e-45 * ranks.rank()])})
    return same


def test_replicas_that_differ_in_one_bit_are_found():
    one, other = together(2, digests)
    assert one == other != ""
