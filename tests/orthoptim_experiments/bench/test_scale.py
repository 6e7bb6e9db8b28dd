"""The scale study: what is counted is what the formulas say, and what real processes do."""

import json
from functools import partial

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

import orthoptim as oo
from orthoptim_experiments.bench.scale import study, tables
from orthoptim_experiments.bench.scale.contenders import CONTENDERS, ours
from orthoptim_experiments.bench.scale.models import MODELS, Case, Model
from orthoptim_experiments.bench.scale.tally import Tally
from orthoptim_experiments.bench.scale.world import fake_world, parameters
from orthoptim_experiments.cli import commands
from tests.distributed.cases import Case as Placed
from tests.distributed.cases import place, start, target
from tests.orthoptim_experiments.together import together

# with 70 ranks their cuts are uneven, and some shards are empty
TRANSFORMER = MODELS["0.1B"].layer()
ADAPTERS = [(64, 8192), (8192, 64)]


def run(*arguments):
    return CliRunner().invoke(commands.app, ["scale", *map(str, arguments)])


@pytest.mark.parametrize("world", [8, 70])
@pytest.mark.parametrize(
    ("contender", "placement"), [("orthoptim", "long dim"), *((name, "first dim") for name in CONTENDERS)]
)
@pytest.mark.parametrize("layer", [TRANSFORMER, ADAPTERS], ids=["transformer", "adapters"])
def test_bytes_are_those_of_the_formulas(contender, placement, layer, world):
    case = Case(layer, 3, placement, world)
    for rank in (None, world - 1):
        _, figures, _ = study.measure(contender, case, rank)
        words = 16 * 1024  # beside the matrices: squares of norms, counters, digests
        assert figures.sent == pytest.approx(figures.expected_sent, rel=0.1, abs=words)
        assert figures.received == pytest.approx(figures.expected_received, rel=0.1, abs=words)


def test_bytes_of_a_real_model_are_within_a_percent_of_the_formulas():
    for row in study.compare("0.1B", 8):
        assert row.busiest.sent == pytest.approx(row.busiest.expected_sent, rel=0.01)
        assert row.busiest.received == pytest.approx(row.busiest.expected_received, rel=0.01)
        assert row.mean == pytest.approx(row.busiest.sent, rel=0.05)  # 72 matrices on 8 ranks


def test_what_ranks_send_is_what_they_receive_and_the_mean_is_theirs():
    case = Case([*TRANSFORMER, *ADAPTERS], 1, "first dim", 2)
    for contender in CONTENDERS:
        found = [study.measure(contender, case, rank) for rank in range(2)]
        sent, received = (sum(getattr(figures, name) for _, figures, _ in found) for name in ("sent", "received"))
        assert sent == pytest.approx(received)
        assert found[0][2] == pytest.approx(sent / 2, rel=0.01)


@pytest.mark.parametrize("contender", CONTENDERS)
def test_collectives(contender):
    expected = {
        "orthoptim": {"all-reduce": 1, "all-to-all": 2},  # the first compares what ranks do
        "gather": {"all-reduce": 1, "all-gather": 2 * 24},
        "owner": {"all-reduce": 1, "gather": 24, "scatter": 24},
        "Muon": {"gather": 24, "scatter": 24},
    }
    _, figures, _ = study.measure(contender, Case(TRANSFORMER, 4, "first dim", 8))
    assert figures.collectives == expected[contender]


def test_strategies_are_those_of_the_plan():
    assert study.measure("orthoptim", Case(TRANSFORMER, 4, "first dim", 8))[0] == {"whole": 24}
    assert study.measure("orthoptim", Case(ADAPTERS, 4, "first dim", 8))[0] == {"exchange": 4, "two-phase": 4}
    assert study.measure("orthoptim", Case(ADAPTERS, 4, "long dim", 8))[0] == {"two-phase": 8}


def test_state_is_sharded_and_shared_by_no_one():
    for world in (4, 8):
        _, figures, _ = study.measure("orthoptim", Case(TRANSFORMER, 4, "first dim", world))
        moments = 4 * 4 * sum(a * b for a, b in TRANSFORMER) / world
        assert figures.state == pytest.approx(moments, rel=0.05)


def test_layers_that_are_not_run_are_counted_as_if_they_were():
    case = Case(TRANSFORMER, 5, "first dim", 8)
    figures, whole = (way("gather", case, 0)[1] for way in (study.measure, study._measure))
    assert figures == whole._replace(extra=figures.extra)
    assert figures.extra == pytest.approx(whole.extra, rel=0.01)


def tally_of_a_step(cases):
    """What a rank of a real world says and allocates."""
    # owners do not keep matrices with a scale: X travels, and the digest alone, as they always do on an accelerator
    params = [torch.nn.Parameter(place(2 * start(c, i, torch.float32), c)) for i, c in enumerate(cases)]
    optimizer = oo.POGO(params, lr=0.1, scale=2.0)
    for i, param in enumerate(params):
        param.grad = place(target(cases[i], i, torch.float32), cases[i])
    optimizer.step()
    with Tally() as tally:
        optimizer.step()
    return dict(tally.collectives), tally.sent, tally.received, tally.flops, tally.peak


def test_a_fake_world_says_what_a_real_one_does(monkeypatch):
    monkeypatch.setitem(CONTENDERS, "scaled", partial(ours, scale=2.0))
    layer = [(64, 64), (64, 64), (256, 64), (64, 256), (4, 512), (512, 4)]
    cases = [Placed(shape, (4,), "0") for shape in layer]
    for rank, (collectives, sent, received, flops, peak) in enumerate(together(4, tally_of_a_step, cases)):
        _, figures, _ = study.measure("scaled", Case(layer, 1, "first dim", 4), rank)
        assert figures.collectives == collectives
        assert (figures.sent, figures.received, figures.flops) == (sent, received, flops)
        assert figures.extra == pytest.approx(peak, rel=0.02)


def test_memory_counts_what_is_held_at_a_time():
    x = torch.empty(1000, device="meta")
    with Tally() as tally:
        y = x + 1
        z = y.view(10, 100) * 2
        del y, z
        x.view(10, 100).add_(1)
        x + 1
    assert (tally.peak, tally.held) == (8000, 0)


def test_a_collective_whose_bytes_are_not_known_is_not_passed_over():
    with fake_world(0, 4), Tally(), pytest.raises(NotImplementedError, match="broadcast"):
        dist.broadcast(torch.empty(3, device="meta"), 0)


def test_models_have_the_size_they_are_named_after():
    sizes = {name: model.entries for name, model in MODELS.items()}
    assert sizes["0.1B"] == pytest.approx(0.1e9, rel=0.2)
    assert sizes["7B"] == pytest.approx(7e9, rel=0.1)
    assert sizes["70B"] == pytest.approx(70e9, rel=0.1)


def test_shards_are_those_of_torch():
    whole = torch.arange(50.0).view(10, 5)
    for world in (2, 3, 4, 16):
        case = Case([(10, 5)], 1, "first dim", world)
        chunks = [tuple(chunk.shape) for chunk in whole.chunk(world)]
        assert [case.local((10, 5), rank) for rank in range(world)][: len(chunks)] == chunks
        with fake_world(world - 1, world) as mesh:
            (param,) = parameters(case, mesh)
            assert param.shape == (10, 5)


# The command


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(MODELS, "small", Model("small", 2, 64, 32, 128, gated=True))


@pytest.mark.usefixtures("small")
def test_the_command_prints_a_table_and_writes_json(tmp_path):
    result = run("--models", "small", "--world-sizes", "2,4", "--json", tmp_path / "figures.json")
    assert result.exit_code == 0, result.output
    assert "small: small, 14 matrices" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    assert sum("ours," in words for words in lines) == 4
    assert not dist.is_initialized()
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [(row["world"], row["contender"]) for row in figures][:5] == [
        (2, "orthoptim"),
        (2, "orthoptim"),
        (2, "gather"),
        (2, "owner"),
        (2, "Muon"),
    ]
    assert figures[0]["busiest"]["collectives"] == {"all-reduce": 1, "all-to-all": 2}


@pytest.mark.usefixtures("small")
def test_a_file_that_cannot_be_written_is_one_line():
    result = run("--models", "small", "--world-sizes", "2", "--json", "no/such/folder")
    assert result.exit_code == 2
    assert result.stderr.startswith("orthoptim: no/such/folder: No such file")


def test_inside_of_a_world_there_is_no_other():
    with fake_world(0, 2), pytest.raises(RuntimeError, match="process group already"), fake_world(0, 4):
        pass


def test_bytes_are_shown_in_three_digits():
    assert [tables.size(count) for count in (0, 12, 1234, 5.678e7, 9.1e13)] == [
        "0",
        "12 B",
        "1.23 kB",
        "56.8 MB",
        "91 TB",
    ]
