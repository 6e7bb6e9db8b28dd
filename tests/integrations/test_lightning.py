"""The callback for Lightning, beside what its example shows."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import orthoptim as oo
from tests.integrations.needs import needs

L = needs("lightning")

from orthoptim.integrations.lightning import DriftMonitor  # noqa: E402

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore:.*(many workers|configured|deprecated|logger|CUDA|interval).*"),
]


class Model(L.LightningModule):
    def __init__(self, far_after=None):
        super().__init__()
        self.layer = oo.orthogonalize_(nn.Linear(4, 4), {"weight": "matrix"})
        self.far_after = far_after

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def on_train_batch_end(self, *arguments):
        if self.global_step == self.far_after:
            with torch.no_grad():
                self.layer.weight.mul_(1.2)

    def configure_optimizers(self):
        return oo.POGO(oo.param_groups(self, {"layer.weight": "matrix"}, lr=0.1, rest={"lr": 1e-3}))


def fit(model, monitor, tmp_path, **options):
    options = {"max_epochs": 1, "logger": False, **options}
    trainer = L.Trainer(
        accelerator="cpu",
        callbacks=[monitor],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        **options,
    )
    trainer.fit(model, DataLoader(torch.randn(20, 4), batch_size=2))
    return trainer


def test_numbers_go_to_every_logger(tmp_path):
    logger = L.pytorch.loggers.CSVLogger(tmp_path)
    trainer = fit(Model(), DriftMonitor(every_n_steps=5), tmp_path, logger=logger, log_every_n_steps=1)
    assert float(trainer.callback_metrics["drift/group0/max_distance"]) < 1e-5
    logger.save()
    text = next(tmp_path.rglob("metrics.csv")).read_text()
    assert "drift/group0/max_distance" in text.splitlines()[0]


def test_a_run_that_leaves_the_manifold_is_stopped(tmp_path):
    # callbacks run before the hook of the module: the weight is written after step 3, and measured after step 4
    with pytest.warns(UserWarning, match=r"parameter 'layer\.weight' is .* training is stopped"):
        trainer = fit(Model(far_after=3), DriftMonitor(every_n_steps=1, limit=1e-4, action="stop"), tmp_path)
    assert trainer.global_step < 10


def test_a_matrix_is_projected(tmp_path):
    model = Model(far_after=3)
    with pytest.warns(UserWarning, match="its group was projected"):
        fit(model, DriftMonitor(every_n_steps=1, limit=1e-4, action="project"), tmp_path)
    assert oo.distance(model.layer.weight) < 1e-5


def test_accumulated_batches_are_measured_once(tmp_path):
    monitor = DriftMonitor(every_n_steps=1)
    measured = []
    measure = monitor.watch.measure
    monitor.watch.measure = lambda opt: measured.append(0) or measure(opt)
    trainer = fit(Model(), monitor, tmp_path, accumulate_grad_batches=5)
    assert len(measured) == trainer.global_step == 2


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true"])
def test_precision_plugins(precision, tmp_path):
    class Cast(Model):
        def training_step(self, batch, index):
            return super().training_step(batch.to(self.layer.weight.dtype), index)

    model = Cast()
    fit(model, DriftMonitor(every_n_steps=5, limit=0.1), tmp_path, precision=precision)
    assert oo.distance(model.layer.weight) < (2e-2 if precision == "bf16-true" else 1e-5)


def test_gradient_clipping_and_schedules(tmp_path):
    class Scheduled(Model):
        def configure_optimizers(self):
            opt = super().configure_optimizers()
            return [opt], [torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=10)]

    trainer = fit(Scheduled(), DriftMonitor(), tmp_path, gradient_clip_val=0.1)
    assert float(trainer.callback_metrics["drift/group0/max_distance"]) < 1e-5
