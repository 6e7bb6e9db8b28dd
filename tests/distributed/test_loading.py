"""A checkpoint that is wrong on one rank is refused on all of them, and no rank waits."""

import copy

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import orthoptim as oo
from tests.conformance.methods import point
from tests.distributed.cases import mesh_of


def load_what_is_wrong_on_rank_one(rank):
    weight = distribute_tensor(point(4, 90).detach(), mesh_of((2,)), [Shard(1)], src_data_rank=None)
    param = nn.Parameter(weight)
    opt = oo.POGO([("weight", param)], lr=0.1)
    saved = copy.deepcopy(opt.state_dict())
    del saved["state"][0]["rescued"]  # as in a checkpoint that is older than the counter
    wrong = copy.deepcopy(saved)
    if rank == 1:
        wrong["state"][0]["exp_avg"].to_local().fill_(torch.nan)
    before = {name: (value, value.clone()) for name, value in opt.state[param].items()}
    try:
        opt.load_state_dict(wrong)
        message = ""
    except ValueError as error:
        message = str(error)
    kept = all(opt.state[param][name] is value for name, (value, _) in before.items())
    opt.load_state_dict(saved)
    state = opt.state[param]
    return message, kept, isinstance(state["exp_avg"], DTensor), not state["rescued"].any()


def test_an_entry_that_is_not_finite_on_one_rank(two):
    for message, kept, placed, counted in two.run(load_what_is_wrong_on_rank_one):
        assert "'exp_avg' that is not finite for parameter 'weight' (4×90)" in message
        assert kept
        assert placed
        assert counted
