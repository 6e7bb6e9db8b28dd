"""Owners keep the matrices that they have stepped: a run is the same as if X were sent to them in every step."""

import copy
from types import SimpleNamespace

import pytest
import torch

import orthoptim as oo
from orthoptim.distributed.strategies import Kept
from tests.distributed.cases import Case, place, start, target

FLAT = [Case((16, 8), (4,), "0"), Case((8, 16), (4,), "0"), Case((10, 6), (4,), "0"), Case((3, 9, 5), (4,), "1")]
REPLICATED = [Case((9, 7), (2, 2), "r 0"), Case((3, 3), (2, 2), "0 r"), Case((8, 12), (2, 2), "0 1")]


def nothing(rank, opt, params):
    pass


def in_place(rank, opt, params):
    with torch.no_grad():
        params[0].mul_(-1)


def without_version(rank, opt, params):
    params[0].data.mul_(-1)


def on_one_rank(rank, opt, params):
    local = params[1].to_local() if rank == 2 else None
    if local is not None:
        local.data.neg_()


def loaded(rank, opt, params):
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))


def broken_off(rank, opt, params):
    """The last step raised on one rank."""
    if rank == 1:
        opt._sharded._is_complete = False


EDITS = [nothing, in_place, without_version, on_one_rank, loaded, broken_off]


def train(rank, cases, edit, setting, fresh):
    """The parameters at the end; ``fresh``: the optimizer forgets what it has kept before every step."""
    params = [torch.nn.Parameter(place(start(case, i, torch.float32), case)) for i, case in enumerate(cases)]
    name, options = setting
    opt = getattr(oo, name)(params, **options)
    for t in range(6):
        for i, (case, param) in enumerate(zip(cases, params, strict=True)):
            param.grad = place(target(case, 10 * t + i, torch.float32), case)
        if t == 3:
            edit(rank, opt, params)
        if fresh:
            opt.load_state_dict(opt.state_dict())
        opt.step()
    return [param.detach().full_tensor() for param in params]


def both(rank, *args):
    kept, sent = (train(rank, *args, fresh) for fresh in (False, True))
    return all(torch.equal(a, b) for a, b in zip(kept, sent, strict=True))


SETTINGS = [
    ("POGO", {"lr": 0.1}),
    ("RGD", {"lr": 0.1, "retraction": "qr"}),
    ("SLPG", {"lr": 0.1, "barzilai_borwein": True}),
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_what_is_kept_is_what_would_be_sent(four, edit):
    for cases in (FLAT, REPLICATED):
        for setting in SETTINGS:
            assert all(four.run(both, cases, edit, setting)), (cases, setting)


def test_an_edit_is_noticed_where_denormal_numbers_are_flushed():
    """Compared as wider floating-point numbers, 0.5 and 0.7 beside a zero would both be flushed to zero."""
    bucket = SimpleNamespace(turn=lambda pieces: pieces)
    param = torch.tensor([[0.5, 0.0], [0.0, 0.0]])
    kept = Kept(pieces=param.clone().unsqueeze(0))
    torch.set_flush_denormal(True)  # where the processor cannot, there is nothing to notice, and nothing fails
    try:
        assert kept.are_same([param], bucket)
        param[0, 0] = 0.7
        assert not kept.are_same([param], bucket)
    finally:
        torch.set_flush_denormal(False)
