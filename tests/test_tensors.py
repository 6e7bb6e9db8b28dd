"""Which tensors are taken for DTensors, and where parameters are cut: without any other process."""

import sys

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard

import orthoptim as oo
from orthoptim.tensors import full, is_dtensor


class Plain(torch.Tensor):
    """A tensor of another class."""


class Placed(DTensor):
    """A DTensor of another class, as libraries make them."""


def test_a_tensor_of_another_class_is_no_dtensor(monkeypatch):
    plain = torch.ones(2).as_subclass(Plain)
    assert not is_dtensor(plain)
    assert full(plain) is plain
    monkeypatch.delitem(sys.modules, "torch.distributed.tensor")
    assert not is_dtensor(plain)


def test_a_subclass_of_dtensor_is_one():
    """One without mesh or placements: only its class is looked at."""
    assert is_dtensor(torch.Tensor._make_wrapper_subclass(Placed, (2,)))


@pytest.mark.parametrize(
    ("shape", "view", "expected"),
    [
        ((7,), "matrix", None),  # no matrix
        ((8, 4), "kernels", None),
        ((8, 4, 3, 3), "kernels", Shard(0)),  # a batch for all
        ((2, 4, 3, 3), "kernels", None),  # three columns for four ranks
        ((8, 4, 3, 3), "filters", Shard(1)),
        ((2, 4, 8), "matrix", Shard(2)),
        ((2, 8, 4), "matrix", Shard(1)),
    ],
)
def test_the_cut_of_least_communication(shape, view, expected):
    assert oo.long_dim_placement(torch.empty(shape), view=view, world_size=4) == expected
