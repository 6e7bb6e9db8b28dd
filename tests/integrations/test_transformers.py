"""The factory and the callback for Trainer, beside what the example shows."""

import pytest
import torch
from torch import nn

import orthoptim as oo
from tests.integrations.needs import needs

transformers = needs("transformers")
needs("accelerate")

from orthoptim.integrations.transformers import DriftCallback, OptimizerFactory  # noqa: E402

pytestmark = pytest.mark.integrations


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = oo.orthogonalize_(nn.Linear(4, 4), {"weight": "matrix"})

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


def trainer(tmp_path, model, **options):
    arguments = transformers.TrainingArguments(
        tmp_path, max_steps=10, logging_steps=2, report_to="none", use_cpu=True, disable_tqdm=True, weight_decay=0.1,
        save_strategy="no", lr_scheduler_type="constant",
    )  # fmt: skip
    data = [{"x": torch.randn(4, generator=torch.Generator().manual_seed(i))} for i in range(8)]
    return transformers.Trainer(model, arguments, train_dataset=data, **options)


CHOSEN = (OptimizerFactory, {"patterns": {"layer.weight": "matrix"}, "lr": 0.1, "rest": {"weight_decay": 0.01}})


def test_weight_decay_of_the_trainer_does_not_reach_orthogonal_parameters(tmp_path):
    run = trainer(tmp_path, Model(), optimizer_cls_and_kwargs=CHOSEN)
    run.train()
    groups = run.optimizer.optimizer.param_groups
    assert groups[0].get("weight_decay", 0) == 0
    assert groups[1]["weight_decay"] == 0.01
    assert oo.distance(run.model.layer.weight) < 1e-5


def test_an_optimizer_that_was_built_before(tmp_path):
    model = Model()
    opt = oo.POGO(oo.param_groups(model, {"layer.weight": "matrix"}, lr=0.1, rest={"lr": 1e-3}))
    run = trainer(tmp_path, model, optimizers=(opt, None))
    callback = DriftCallback().attach(run)
    run.train()
    logs = [entry for entry in run.state.log_history if "loss" in entry]
    assert all(entry["drift/group0/max_distance"] < 1e-5 for entry in logs)
    assert run.callback_handler.callbacks[0] is callback


def test_a_run_that_leaves_the_manifold_is_stopped(tmp_path):
    class Breaker(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == 5:
                with torch.no_grad():
                    model.layer.weight.mul_(1.3)

    run = trainer(tmp_path, Model(), optimizer_cls_and_kwargs=CHOSEN, callbacks=[Breaker()])
    DriftCallback(limit=1e-5, action="stop").attach(run)
    with pytest.warns(UserWarning, match="training is stopped"):
        run.train()
    assert run.state.global_step == 6
