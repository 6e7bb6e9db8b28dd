"""A minute of random sequences, and whether the machine sees what is wrong."""

import copy
import json
from unittest import mock

import pytest
import torch

import orthoptim as oo
from orthoptim.engine.step import BlockStep
from tests.fuzz import __main__ as command
from tests.fuzz.draw import Draw
from tests.fuzz.expectations import Violation
from tests.fuzz.gradients import KINDS, LAYOUTS, Gradient
from tests.fuzz.machine import Machine, replay
from tests.fuzz.operations import Duplicate, Overwrite, Recover, Reload, SetLr, Step
from tests.fuzz.shrink import as_python, shrink, violation_of
from tests.fuzz.start import Group, Start

SEQUENCES = 60
PARTS = 2  # tests, so that workers can share them

NOISE = Step((Gradient(("noise",)),))
ONE = Start("pogo", (Group(((3, 4, 6),), options={"landing": "safe"}),))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_sequences_break_no_promise(part):
    size = SEQUENCES // PARTS
    assert command.main(["--sequences", str(size), "--first", str(part * size)]) == 0


@pytest.mark.soak
def test_many_random_sequences_break_no_promise():
    assert command.main(["--sequences", "3000", "--first", "100000"]) == 0


@pytest.mark.soak  # to compile it takes half a minute
def test_a_compiled_sequence_breaks_no_promise():
    group = Group(((3, 2, 3),), lr=0.5, base="vadam", options={"landing": "strict", "compile": True})
    kinds = ("noise", "nan", "huge")
    replay(Start("pogo", (group,)), [Step((Gradient(kinds),)), SetLr(0, 1e6), Step((Gradient(kinds[1:]),), seed=1)])


def test_the_command_counts_and_records(tmp_path, capsys, monkeypatch):
    compute_with(monkeypatch, lambda self, x, new_x, state: (new_x * 1.3, state))
    output = tmp_path / "counts.json"
    arguments = ["--sequences", "8", "--shrink", "0", "--most", "2", "--output", str(output)]
    assert command.main(arguments) == 1
    record = json.loads(output.read_text())
    assert record["violations"] == 2
    assert record["sequences"] <= 8
    assert record["steps"] > 0
    assert "violations" in capsys.readouterr().out


def test_a_seed_gives_one_sequence():
    assert Draw(3, 5).sequence() == Draw(3, 5).sequence()
    assert Draw(3, 5).sequence() != Draw(4, 5).sequence()


def test_everything_is_drawn():
    sequences = [Draw(0, number).sequence() for number in range(600)]
    steps = [op for _, operations in sequences for op in operations if isinstance(op, Step)]
    gradients = [gradient for step in steps for gradient in step.gradients]
    assert {kind for gradient in gradients for kind in gradient.kinds} == {*KINDS, "none", "sparse"}
    assert {gradient.layout for gradient in gradients} == set(LAYOUTS)
    groups = [group for begin, _ in sequences for group in begin.groups if not group.ordinary]
    assert {group.dtype for group in groups} >= {"float16", "bfloat16", "complex64", "complex128"}
    views = {str(group.options["view"]) for group in groups}
    assert views >= {"matrix", "filters", "kernels"}
    assert any("heads" in view for view in views)
    assert {group.options["side"] for group in groups} == {"auto", "rows", "columns"}
    forms = {form for begin, _ in sequences[:60] if begin.method == "pogo" for form in _forms(begin)}
    assert forms >= {"tiny", "direct-n", "direct-p", "gram"}


def _forms(begin):
    return [plan.form for plan in Machine(begin).main.opt.plan()]


def test_the_printed_sequence_is_the_sequence():
    for number in range(20):
        begin, operations = Draw(1, number).sequence()
        source = as_python((begin, operations))
        replayed = mock.Mock()
        names = {cls.__name__: cls for cls in (Start, Group, Gradient, *{type(op) for op in operations})}
        scope = {**names, "replay": replayed}
        exec(source, scope)
        scope["test_sequence"]()
        replayed.assert_called_once_with(begin, operations)


# Planted faults: each must be seen, by the rule that is there for it.


def compute_with(monkeypatch, change):
    """Let ``change(self, x, new_x, new_state)`` spoil what a block step computes."""
    plain = BlockStep.compute

    def compute(self, x, *args):
        new_x, new_state = plain(self, x, *args)
        return change(self, x, new_x, new_state)

    monkeypatch.setattr(BlockStep, "compute", compute)


def rule_of(begin, operations):
    violation = violation_of((begin, operations))
    return None if violation is None else violation.rule


def test_a_matrix_off_the_manifold_is_seen(monkeypatch):
    compute_with(monkeypatch, lambda self, x, new_x, state: (new_x * 1.3, state))
    assert rule_of(ONE, [NOISE]) == "bound"


def test_a_value_that_is_not_finite_is_seen(monkeypatch):
    compute_with(monkeypatch, lambda self, x, new_x, state: (new_x / 0, state))
    assert rule_of(Start("slpg", (Group(((3, 4, 6),)),)), [NOISE]) == "finite"


def test_a_counter_that_is_wrong_is_seen(monkeypatch):
    def change(self, x, new_x, state):
        state["num_updates"] += 1
        return new_x, state

    compute_with(monkeypatch, change)
    assert rule_of(ONE, [NOISE]) == "counters"


def test_a_skipped_matrix_that_moves_is_seen(monkeypatch):
    compute_with(monkeypatch, lambda self, x, new_x, state: (new_x.flip(1), state))
    assert rule_of(ONE, [Step((Gradient(("nan",)),))]) == "skipped"


def test_a_neighbour_that_feels_poison_is_seen(monkeypatch):
    plain = BlockStep.compute

    def compute(self, x, grad, *args):
        return plain(self, x, grad + grad.isnan().sum(), *args)

    monkeypatch.setattr(BlockStep, "compute", compute)
    assert rule_of(ONE, [Step((Gradient(("noise", "nan")),))]) == "neighbours"


def test_a_copy_that_differs_is_seen(monkeypatch):
    plain = oo.POGO.load_state_dict

    def load(self, state_dict):
        changed = copy.deepcopy(state_dict)
        changed["state"][0]["momentum_buffer"] = changed["state"][0]["momentum_buffer"].float().mul(1 + 1e-6)
        plain(self, changed)

    monkeypatch.setattr(oo.POGO, "load_state_dict", load)
    begin = Start("pogo", (Group(((4, 6),), base="sgd-momentum"),))
    assert rule_of(begin, [NOISE, Duplicate("save")]) == "resume"
    assert rule_of(begin, [NOISE, Reload()]) == "resume"


def test_a_matrix_that_does_not_come_back_is_seen(monkeypatch):
    compute_with(monkeypatch, lambda self, x, new_x, state: (x, state))
    assert rule_of(ONE, [Overwrite(0, 0, "scale", 3.0), Recover(steps=5)]) == "recovery"


def test_a_sparse_gradient_that_is_taken_is_seen(monkeypatch):
    monkeypatch.setattr(oo.POGO, "_step_groups", lambda self: None)
    assert rule_of(ONE, [Step((Gradient(("sparse",)),))]) == "sparse"


def test_an_ordinary_parameter_that_torch_would_put_elsewhere_is_seen(monkeypatch):
    monkeypatch.setattr("orthoptim.optim.ordinary.step", lambda *args: None)
    begin = Start("pogo", (Group(((3,),), base="adamw", ordinary=True), *ONE.groups))
    assert rule_of(begin, [NOISE]) == "ordinary"


def test_a_failing_sequence_is_made_small(monkeypatch):
    def change(self, x, new_x, state):
        return (new_x * 1.3 if x.dtype == torch.float64 else new_x), state

    compute_with(monkeypatch, change)
    begin = Start("pogo", (*ONE.groups, Group(((4, 4), (2, 3)), dtype="float64", options={"landing": "strict"})))
    plain = [SetLr(0, 0.2), NOISE, Duplicate("deepcopy"), NOISE, Reload(), NOISE]
    with pytest.raises(Violation, match="bound"):
        replay(begin, plain)
    (group,), operations = shrink((begin, plain), "bound")[0].groups, shrink((begin, plain), "bound")[1]
    assert len(group.shapes) == 1
    assert operations == [NOISE]
