"""Adapters with orthonormal factors, beside what the examples show."""

import copy

import pytest
import torch
from torch import nn

import orthoptim as oo
from tests.integrations.needs import needs

peft = needs("peft")

from orthoptim.integrations.peft import DirectRotation, fold_, orthogonal_blocks, stiefel_lora  # noqa: E402

pytestmark = pytest.mark.integrations


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 12))


def train(model, patterns, steps=5):
    opt = oo.POGO(oo.param_groups(model, patterns, lr=0.02, rest={"lr": 0.05}))
    for _ in range(steps):
        opt.zero_grad()
        model(torch.ones(3, 12)).square().sum().backward()
        opt.step()
    return opt


@pytest.mark.parametrize("core", [False, True])
def test_factors_are_orthonormal_and_the_model_is_unchanged_at_the_start(core):
    x = torch.randn(5, 12)
    expected = network()(x)
    model = peft.get_peft_model(network(), peft.LoraConfig(r=4, target_modules=["0", "2"]))
    patterns = stiefel_lora(model, core=core)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-6)
    opt = train(model, patterns)
    assert sum(row.matrices for row in opt.drift()) == (4 if core else 2)
    assert max(row.max_distance for row in opt.drift()) < 1e-5
    assert (model(x) - expected).abs().max() > 1e-3
    for name, param in model.named_parameters():
        if "lora_B" in name:
            assert param.shape[0] > param.shape[1]
            torch.testing.assert_close(param.mT @ param, torch.eye(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("core", [False, True])
def test_adapters_merge_before_and_after_they_are_folded(core):
    x = torch.randn(5, 12)
    model = peft.get_peft_model(network(), peft.LoraConfig(r=4, target_modules=["0", "2"]))
    train(model, stiefel_lora(model, core=core))
    expected = model(x).detach()
    merged = copy.deepcopy(model).merge_and_unload()
    torch.testing.assert_close(merged(x), expected, rtol=0, atol=1e-5)
    folded = fold_(model)
    torch.testing.assert_close(folded(x), expected, rtol=0, atol=1e-5)
    assert all(type(layer) is nn.Linear for name, layer in folded.named_modules() if name.endswith("lora_A.default"))
    torch.testing.assert_close(folded.merge_and_unload()(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("share", [False, True])
def test_blocks_stay_orthogonal_and_fold_into_skew_matrices(share):
    x = torch.randn(5, 12)
    expected = network()(x)
    config = peft.OFTConfig(r=0, oft_block_size=4, target_modules=["0", "2"], block_share=share)
    model = peft.get_peft_model(network(), config)
    patterns = orthogonal_blocks(model)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-6)
    opt = train(model, patterns, steps=20)
    assert opt.drift()[0].max_distance < 1e-5
    expected = model(x).detach()
    fold_(model)
    assert not any(isinstance(module, DirectRotation) for module in model.modules())
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(model.merge_and_unload()(x), expected, rtol=0, atol=1e-4)


def test_a_rotation_by_half_a_turn_has_no_skew_matrix():
    model = peft.get_peft_model(network(), peft.OFTConfig(r=0, oft_block_size=4, target_modules=["0"]))
    orthogonal_blocks(model)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "oft_R" in name:
                param[0] = -torch.eye(4)
    with pytest.raises(ValueError, match="eigenvalue -1 and no Cayley transform"):
        fold_(model)


def test_a_model_without_adapters_is_refused():
    with pytest.raises(ValueError, match="no linear LoRA layer with an adapter 'default'"):
        stiefel_lora(network())
    with pytest.raises(ValueError, match="no OFT layer with an adapter 'default'"):
        orthogonal_blocks(network())
