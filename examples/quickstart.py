"""
Quickstart: an orthogonal network in ten minutes
================================================

We train a small network with orthogonal convolution kernels and orthogonal attention on real images of digits. We
monitor how far its matrices are from orthogonal, save it half way, and resume.

The data set (1797 images of 8×8 pixels) is part of the package. Install it with the extra ``experiments``::

    pip install '.[experiments]'

Running this file produced the output on this page. You can download the file at the end of the page.
"""

# %%
# The data
# --------
# 1500 images to train on, 297 to test.

import tempfile
from pathlib import Path

import torch
from torch import nn

import orthoptim as oo
from orthoptim_experiments.problems.datasets import load

torch.manual_seed(0)
digits = load("digits8")
train_x, train_y = digits.train.pixels / 16 - 0.3, digits.train.labels
test_x, test_y = digits.test.pixels / 16 - 0.3, digits.test.labels

# %%
# The model
# ---------
# Two convolutions, attention over the 16 remaining positions, and a linear head. It is an ordinary model: the
# optimizer, not the model, handles orthogonality.


class Net(nn.Module):
    """Convolutions, attention, a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, stride=2)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.attn = nn.MultiheadAttention(width, num_heads=4, batch_first=True)
        self.head = nn.Linear(16 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a batch of images (B, 1, 8, 8)."""
        x = torch.relu(self.norm1(self.conv1(x)))
        tokens = torch.relu(self.norm2(self.conv2(x))).flatten(2).mT
        tokens = tokens + self.attn(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(tokens.flatten(1))


# %%
# Three lines
# -----------
# Name the orthogonal weights, make them orthogonal, and build the optimizer. ``"kernels"`` are the 3×3 kernels of a
# convolution. ``MultiheadAttention`` stores the projections of queries, keys and values in one parameter; ``split=3``
# makes each of the three orthogonal. AdamW trains all other parameters in the same ``step()``.

ORTHOGONAL = {
    "conv*.weight": "kernels",
    "attn.in_proj_weight": oo.View("matrix", split=3),
    "attn.out_proj.weight": "matrix",
}


def build() -> tuple[Net, oo.POGO, torch.optim.lr_scheduler.LRScheduler]:
    """A new model with its optimizer and schedule."""
    model = Net()
    oo.orthogonalize_(model, ORTHOGONAL)
    groups = oo.param_groups(model, ORTHOGONAL, lr=0.1, rest={"algorithm": "adamw", "lr": 3e-3})
    opt = oo.POGO(groups)
    return model, opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=EPOCHS, eta_min=1e-4)


EPOCHS = 8
model, opt, schedule = build()
print(opt.plan())

# %%
# Train and monitor
# -----------------
# This is an ordinary loop. ``opt.drift()`` returns one row per group: the number of matrices, the mean and the largest
# distance ``‖XXᴴ − I‖_F``, and how many steps were skipped (the gradient was not finite), clipped (the leap was too
# long) or rescued (something wrote into the weights). It waits for the device, so call it once per epoch rather than
# in each step. ``opt.drift().as_dict()`` returns scalars for TensorBoard or Weights & Biases.


def train_epoch(model: Net, opt: torch.optim.Optimizer, epoch: int) -> float:
    """One pass over the data; returns the mean loss."""
    order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
    model.train()
    total = 0.0
    for rows in order.split(100):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
        loss.backward()
        opt.step()
        total += float(loss.detach()) * len(rows)
    return total / len(train_x)


def accuracy(model: Net) -> float:
    """Share of the test images that are classified correctly."""
    model.eval()
    with torch.no_grad():
        return float((model(test_x).argmax(1) == test_y).float().mean())


first_loss = None
for epoch in range(EPOCHS // 2):
    loss = train_epoch(model, opt, epoch)
    first_loss = first_loss or loss
    schedule.step()
    worst = max(row.max_distance for row in opt.drift())
    print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy(model):.1%}, largest distance {worst:.1e}")

print(opt.drift())

# %%
# Save and resume
# ---------------
# ``oo.save`` is ``torch.save`` that replaces the file atomically. State dicts hold tensors, numbers and strings only,
# so ``weights_only=True`` can load them.

path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
state = {"model": model.state_dict(), "opt": opt.state_dict(), "schedule": schedule.state_dict(), "epoch": EPOCHS // 2}
oo.save(state, path)

# %%
# Resume in this order: build the model and the optimizer as before, load the weights, then load the optimizer state.
# The resumed run equals the uninterrupted one bit for bit:

resumed, resumed_opt, resumed_schedule = build()
saved = torch.load(path, weights_only=True)
resumed.load_state_dict(saved["model"])
resumed_opt.load_state_dict(saved["opt"])
resumed_schedule.load_state_dict(saved["schedule"])

for epoch in range(saved["epoch"], EPOCHS):
    loss = train_epoch(model, opt, epoch)
    again = train_epoch(resumed, resumed_opt, epoch)
    schedule.step()
    resumed_schedule.step()
    print(f"epoch {epoch}: loss {loss:.4f}, resumed {again:.4f}")

assert all(map(torch.equal, model.parameters(), resumed.parameters()))

# %%
# Result
# ------

worst = max(row.max_distance for row in resumed_opt.drift())
print(f"loss {first_loss:.3f} -> {again:.3f}, test accuracy {accuracy(resumed):.1%}, largest distance {worst:.1e}")
assert again < first_loss
assert worst <= 1e-5

# %%
# Next: :doc:`/choosing` helps with the method, base and learning rate; :doc:`/guides/index` covers convolutions,
# attention, mixed precision and distributed training; :doc:`/troubleshooting` helps when something goes wrong.
