"""What an optimizer tells of itself: drift and plan, as rows, as tables and as numbers for loggers."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import orthoptim as oo
from tests.conformance.methods import clones, every_method, point, set_gradients, steps

WIDE = 100


def model(depth=3):
    layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(depth)), nn.Conv2d(2, 3, 3))
    return oo.orthogonalize_(layers, {"?.weight": {"view": "matrix"}})


def optimizer():
    groups = oo.param_groups(
        model(), {"3.weight": "kernels", "*.weight": "matrix"}, lr=0.1, rest={"algorithm": "adamw", "lr": 1e-3}
    )
    return oo.POGO(groups)


def test_drift_prints_as_a_table_with_names_and_the_norm():
    title, heads, first, second = str(optimizer().drift()).split("\n")
    assert "‖XXᴴ − I‖_F" in title
    columns = ["group", "parameter", "matrices", "mean", "max", "skipped", "clipped", "rescued", "deficient"]
    assert heads.split() == columns
    assert first.split()[:3] == ["0", "3.weight", "6"]
    assert second.split()[:5] == ["1", "0.weight", "+2", "more", "3"]


def test_one_row_for_each_parameter():
    opt = optimizer()
    params = opt.param_groups[1]["params"]
    with torch.no_grad():
        params[1].mul_(1.1)
    rows = opt.drift(per_parameter=True)
    assert [(row.group, row.name, row.matrices) for row in rows] == [
        (0, "3.weight", 6),
        (1, "0.weight", 1),
        (1, "1.weight", 1),
        (1, "2.weight", 1),
    ]
    assert [row.max_distance for row in rows[1:]] == pytest.approx([float(oo.distance(p)) for p in params])
    assert len(str(rows).split("\n")) == 2 + 4


@every_method
def test_the_row_of_a_group_is_made_of_those_of_its_parameters(make):
    params = [point(2, 3, 5), point(4, 4, seed=1), point(3, 3, 5, seed=2)]
    opt = make(params)
    for t in range(3):
        set_gradients(params, t)
        params[2].grad[1, 0, 0] = torch.nan
        opt.step()
    (row,), rows = opt.drift(), opt.drift(per_parameter=True)
    values = torch.cat([oo.distance(p).reshape(-1) for p in params])
    assert row.matrices == sum(each.matrices for each in rows) == len(values)
    assert row.mean_distance == pytest.approx(float(values.mean()), rel=1e-5)
    assert row.max_distance == max(each.max_distance for each in rows) == float(values.max())
    assert [each.skipped for each in rows] == [0, 0, 3]
    for count in ("skipped", "clipped", "rescued", "deficient"):
        assert getattr(row, count) == sum(getattr(each, count) for each in rows)


def test_parameters_without_names_are_numbered():
    opt = oo.POGO([point(4, 6), point(5, 6)], lr=0.1)
    assert opt.drift()[0].name == "params[0] +1 more"
    assert [row.name for row in opt.drift(per_parameter=True)] == ["params[0]", "params[1]"]
    assert [row.name for row in opt.plan()] == ["params[0]", "params[1]"]


def test_plan_prints_as_a_table_with_names():
    lines = str(optimizer().plan()).split("\n")
    heads = ["group", "parameter", "matrices", "p×n", "dtype", "device", "form", "blocks", "strategy"]
    assert lines[1].split() == heads
    assert lines[2].split() == ["0", "3.weight", "6", "3×3", "float32", "cpu", "tiny", "1", "local"]
    assert lines[3].split()[:6] == ["1", "0.weight", "+2", "more", "3", "6×6"]


def test_the_plan_of_each_parameter():
    params = [point(3, 3, 3), point(5000, 3, 3, seed=1), point(6, 6, seed=2), point(2, 6, 6, seed=3)]
    opt = oo.POGO(params, lr=0.1)
    rows = {row.name: row for row in opt.plan(per_parameter=True)}
    assert [rows[f"params[{i}]"].matrices for i in range(4)] == [3, 5000, 1, 2]
    buckets = {(row.p, row.n): row for row in opt.plan()}
    assert sum(row.matrices for row in rows.values()) == sum(row.matrices for row in buckets.values())
    for row in rows.values():
        bucket = buckets[row.p, row.n]
        assert row[4:7] == bucket[4:7]
        assert 1 <= row.blocks <= bucket.blocks


@pytest.mark.parametrize("per_parameter", [False, True])
def test_loggers_get_plain_numbers(per_parameter):
    opt = optimizer()
    drift, plan = opt.drift(per_parameter=per_parameter), opt.plan(per_parameter=per_parameter)
    numbers = drift.as_dict()
    assert {type(value) for value in numbers.values()} == {int, float}
    assert len(numbers) == 7 * len(drift)  # no two rows share a key
    second = "group1/0.weight/" if per_parameter else "group1/"
    assert numbers[f"{second}max_distance"] == drift[1].max_distance
    assert numbers[f"{second}rescued"] == 0
    assert {type(value) for value in plan.as_dict().values()} == {int}
    assert len(plan.as_dict()) == 5 * len(plan)
    assert plan.as_dict()["group1/bucket0/n"] == 6


def test_a_table_is_still_a_list_of_tuples():
    opt = oo.POGO([point(4, 6)], lr=0.1)
    (drift,), (plan,) = opt.drift(), opt.plan()
    assert isinstance(drift, oo.Drift)
    assert isinstance(opt.plan(), oo.Plan)
    assert isinstance(plan, tuple)
    assert opt.drift() == [drift]
    for table in (opt.drift(per_parameter=True), opt.plan()):
        for twin in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
            assert twin == table
            assert str(twin) == str(table)
            assert twin.as_dict() == table.as_dict()


def test_tables_are_narrow():
    deep = nn.ModuleDict({"encoder_of_many_words": nn.ModuleDict({"attention_layer": nn.Linear(4096, 8)})})
    oo.orthogonalize_(deep, {"*.weight": "matrix"})
    opt = oo.POGO(oo.param_groups(deep, {"*.weight": "matrix"}, lr=0.1))
    steps(opt, [deep["encoder_of_many_words"]["attention_layer"].weight], 3)
    for table in (opt.drift(), opt.drift(per_parameter=True), opt.plan()):
        lines = str(table).split("\n")
        assert max(map(len, lines)) < WIDE
        assert "…" in lines[2]
        assert "layer.weight" in lines[2]  # the end of a name tells more than its beginning
    assert opt.drift()[0].name == "encoder_of_many_words.attention_layer.weight"


def test_no_constrained_parameters():
    free = nn.Parameter(torch.ones(3))
    opt = oo.POGO([{"params": [free], "algorithm": "adamw", "lr": 0.1}])
    assert opt.drift() == opt.plan() == []
    assert opt.drift().as_dict() == opt.plan().as_dict() == {}
    assert len(str(opt.drift()).split("\n")) == 2


SINGULAR = {
    "zero": torch.zeros(3, 5),
    "a zero row": torch.eye(3, 5) * torch.tensor([1.0, 0.0, 1.0])[:, None],
    "equal rows": torch.eye(5)[[0, 1, 1]],
    "large": 1e25 * torch.ones(3, 5),
    "small": 1e-25 * torch.ones(3, 5),
}
REGULAR = {
    "on the manifold": torch.eye(3, 5),
    "three times as long": 3 * torch.eye(3, 5),
    "small": 1e-25 * torch.eye(3, 5),
    "long rows and short ones": torch.eye(3, 5) * torch.tensor([10.0, 1.0, 0.1])[:, None],
    "not finite": math.nan * torch.eye(3, 5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
def test_matrices_without_full_rank_are_counted(dtype):
    values = torch.stack([*SINGULAR.values(), *REGULAR.values()])
    one, two = clones([point(len(values), 3, 5, dtype=dtype)] * 2)
    opt = oo.POGO([one, two], lr=0.1)
    rotation = point(5, 5, dtype=torch.float64).detach()
    with torch.no_grad():
        one.copy_(values)
        two[1].copy_(rotation[[0, 1, 1]])
    assert opt.drift()[0].deficient == len(SINGULAR) + 1
    assert [row.deficient for row in opt.drift(per_parameter=True)] == [len(SINGULAR), 1]


@pytest.mark.parametrize("name", REGULAR)
def test_a_matrix_of_full_rank_is_not(name):
    param = point(3, 5)
    opt = oo.POGO([param], lr=0.1)
    with torch.no_grad():
        param.copy_(REGULAR[name])
    assert opt.drift()[0].deficient == 0


def test_a_distance_that_is_not_a_number_is_not_lost():
    params = [point(3, 5), point(3, 5, seed=1)]
    opt = oo.POGO(params, lr=0.1)
    with torch.no_grad():
        params[0][0, 0] = math.nan
    assert math.isnan(opt.drift()[0].max_distance)
