"""Halving of the learning rate and early stopping."""

import io

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orthoptim_experiments.problems.circuits.schedule import Schedule

PATIENCE = 20


def make(lr=1.0, plateau=10, progress=1e-4):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=lr)
    return Schedule(optimizer, plateau=plateau, progress=progress, patience=PATIENCE)


@given(st.lists(st.sampled_from([1.0, 1.0005, 1.2, 1.5]), max_size=30), st.integers(0, 30))
@settings(max_examples=15, deadline=None)
def test_a_schedule_that_is_resumed_goes_on_alike(seen, cut):
    whole, first = make(), make()
    for bpd in seen:
        whole.see(bpd)
    for bpd in seen[:cut]:
        first.see(bpd)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = make(first.lr)  # the optimizer's own state has it
    second.load_state_dict(torch.load(buffer, weights_only=True))
    for bpd in seen[cut:]:
        second.see(bpd)
    assert second.state_dict() == whole.state_dict()
    assert second.lr == whole.lr


def test_small_gains_keep_the_learning_rate_but_not_the_training():
    schedule = make()
    for epoch in range(1 + PATIENCE):
        assert not schedule.exhausted
        schedule.see(1.3 - 0.0004 * epoch)
        if epoch % 3 == 0:  # three such gains are one that counts
            assert schedule.stalled == 0
    assert schedule.lr == 1.0
    for _ in range(PATIENCE):
        schedule.see(1.3)
    assert schedule.exhausted
    assert schedule.lr == 0.25  # two plateaus


def test_the_learning_rate_is_halved_after_so_many_epochs_without_progress():
    schedule, rates = make(plateau=2, progress=0.01), []
    for bpd in (1.4, 1.35, 1.345, 1.338, 1.336, 1.33, 1.325, 1.31):
        schedule.see(bpd)
        rates.append(schedule.lr)
    # small gains add up: 1.338 is progress since 1.35
    assert rates == [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
