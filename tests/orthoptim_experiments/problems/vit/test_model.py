"""The O-ViT: its sizes, its attention."""

import math

import pytest
import torch

import orthoptim as oo
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.problems.vit.experiment import PAPER_SIZES
from orthoptim_experiments.problems.vit.model import OrthogonalAttention, OViT
from orthoptim_experiments.problems.vit.training import ATTENTION, make_model


def test_sizes_of_the_paper():
    with torch.device("meta"):
        model = make_model(PAPER_SIZES, seed=0)
    assert sum(param.numel() for param in model.parameters()) == 28_480_010
    matrices = [param for group in oo.param_groups(model, ATTENTION, rest=None) for param in group["params"]]
    assert [tuple(param.shape) for param in matrices] == 18 * [(1024, 1024)]
    assert model.positions.shape == (1, 65, 1024)


def test_attention_against_its_definition():
    attention = OrthogonalAttention(dim=12, heads=3, dropout=0.0).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    heads = []
    for part in range(3):
        columns = slice(4 * part, 4 * part + 4)
        q, k, v = ((x @ weight)[..., columns] for weight in (attention.query, attention.key, attention.value))
        heads.append(torch.softmax(q @ k.mT / math.sqrt(4), dim=-1) @ v)
    torch.testing.assert_close(attention(x), attention.output(torch.cat(heads, dim=-1)))


def test_attention_starts_orthogonal():
    model = OViT(dim=16, depth=2, heads=2, hidden=8)
    for group in oo.param_groups(model, ATTENTION, rest=None):
        assert all(oo.is_orthogonal(param) for param in group["params"])


def test_dropout_is_for_training():
    model, x = OViT(dim=16, depth=1, heads=2, hidden=8), torch.randn(4, 3, 32, 32)
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_the_class_token_attends_to_every_patch():
    model = OViT(dim=16, depth=1, heads=2, hidden=8).eval()
    x = torch.randn(1, 3, 32, 32, requires_grad=True)
    model(x).square().sum().backward()
    assert bool((x.grad.abs().sum(1) > 0).all())


def test_heads_must_divide():
    with pytest.raises(ValueError, match="no multiple"):
        OViT(dim=10, heads=4)


def test_learning_rates_of_the_paper_are_for_its_number_of_steps():
    vit = EXPERIMENTS["vit"]
    laptop, paper = (vit.methods(configuration(vit, scale)) for scale in ("laptop", "paper"))
    changed = {name for name in paper if laptop[name].get("lr") != paper[name].get("lr")}  # BB has none
    landings = {f"POGO-{landing}" for landing in ("safe", "strict", "root", "argmin")}
    assert changed == {"POGO", *landings, "Landing", "LandingPC", "SLPG"}
    assert {laptop[name]["lr"] for name in changed} == {paper["RGD"]["lr"]}
    assert (paper["RSDM"]["r"], laptop["RSDM"]["r"]) == (300, 75)
