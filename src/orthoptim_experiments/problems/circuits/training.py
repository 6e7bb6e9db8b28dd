"""The training of a squared unitary circuit, as a problem of the harness: batch by batch, resumed exactly."""

import math
import resource
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim.tensors import full
from orthoptim_experiments.harness import ranks, sharding
from orthoptim_experiments.harness.experiment import Config, Outcome, Problem, left_manifold
from orthoptim_experiments.problems.circuits.model import SquaredUnitaryCircuit
from orthoptim_experiments.problems.circuits.pictures import draw_inpaintings, draw_samples
from orthoptim_experiments.problems.circuits.schedule import Schedule
from orthoptim_experiments.problems.datasets import BatchLoader, Images, generator, load

VALIDATION = 0.05
"""The share of the training images that is held out."""

EVALUATION_BATCH = 500

LOST = 100.0
"""A matrix this far from the manifold does not come back. The optimizers leave it where it is, once steps overflow, and
bits per dimension with log Z in them may look well: only log Z and the distance tell."""

COMPLEX = {"float32": torch.complex64, "float64": torch.complex128}


class CircuitTraining(Problem):
    """A circuit that is to fit the distribution of images: the mean of −log |c(x)|² is minimised.

    Validation follows each epoch, untimed: the learning rate and the end of the training depend on it. All draws are
    functions of the seed, see :mod:`orthoptim_experiments.problems.datasets.draws`. Where several ranks train together,
    each takes its part of every batch and of the images to evaluate on.

    Args:
        config: with ``dataset``, ``train_images`` and ``test_images``, ``states`` (values of a pixel), ``units``,
            ``batch_size``, ``epochs``, ``evaluations`` (per epoch), ``plateau``, ``progress`` and ``patience``
            (see :class:`Schedule`), ``dtype``, ``device`` and ``sharded`` (if not, it may be left out).
        seed: of all draws.
        draw: whether the trained circuit draws pictures.
    """

    def __init__(self, config: Config, seed: int, *, draw: bool = True) -> None:
        self.seed, self.device, self.draw = seed, torch.device(config["device"]), draw
        data = load(config["dataset"])
        train, validation = split(data.train.first(config["train_images"]), seed)
        size = config["batch_size"]
        part = ranks.local_slice(size)
        self.loader = BatchLoader(train.to(self.device), size, data.mean, data.std, seed=seed, part=part)
        self.validation = validation.to(self.device).pixels
        self.test = data.test.first(config["test_images"]).to(self.device).pixels
        height, width = self.test.shape[-2:]
        draws = generator(seed, "circuit")
        dtype = COMPLEX[config["dtype"]]
        self._sizes = (height, width, config["units"], config["states"])
        self.model = SquaredUnitaryCircuit(*self._sizes, dtype=dtype, generator=draws).to(self.device)
        ranks.broadcast_parameters(self.model)
        if config.get("sharded"):
            sharding.shard(self.model, methods=["log_partition"])  # all complex: one group
        # bits per dimension are nats per image over this
        self.nats = height * width * math.log(2)
        # Z ≥ |c(x)|² makes the loss positive on the manifold; twice as bad as knowing nothing is no model any more
        self.too_far = 2 * height * width * math.log(config["states"])
        self.budget = math.ceil(config["epochs"] * self.loader.steps_per_epoch)
        self.stride: int = max(1, self.loader.steps_per_epoch // config["evaluations"])
        self._scheduled = {name: config[name] for name in ("plateau", "progress", "patience")}
        self._last_loss = 0.0
        self._sum, self._batches = 0.0, 0
        self._validated: tuple[int, float] = (-1, math.nan)
        self._measured: tuple[int, Tensor] = (-1, torch.empty(0))

    def parameters(self) -> list[torch.nn.Parameter]:
        """See :meth:`Problem.parameters`."""
        return list(self.model.parameters())

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """See :meth:`Problem.begin`."""
        super().begin(optimizer)
        self.schedule = Schedule(optimizer, **self._scheduled)

    def advance(self) -> None:
        """Train on one batch."""
        images = self.loader.next_bytes()
        # the mean over the whole batch, of which this may be a part
        loss = -self.model(images).mean() * (len(images) / self.loader.batch_size)
        torch.autograd.backward(loss)
        loss = ranks.sum_gradients(self.model.parameters(), loss.detach())
        with self.stepping:
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self._last_loss = loss.item()
        self._sum, self._batches = self._sum + self._last_loss, self._batches + 1

    def due(self) -> bool:
        """Several times an epoch, and at its end."""
        return self.step % self.loader.steps_per_epoch % self.stride == 0

    def outcome(self) -> Outcome | None:
        """See :meth:`Problem.outcome`; after an epoch, the schedule takes its validation bits per dimension."""
        if not abs(self._last_loss) < self.too_far:  # nan as well
            return Outcome("diverged", f"the loss is {self._last_loss:.3g} after {self.step} steps")
        if self.due() and not (away := self.distances().max().item()) < LOST:
            return Outcome("diverged", f"a matrix is {away:.3g} from the manifold after {self.step} steps")
        if self.due() and (lost := left_manifold(self.optimizer, self.step)):
            return lost
        if self.step // self.loader.steps_per_epoch > self.schedule.epochs:
            bpd = self.validation_bpd()
            if not math.isfinite(bpd):
                return Outcome("diverged", f"validation gives {bpd} bits per dimension after {self.step} steps")
            self.schedule.see(bpd)
        if self.schedule.exhausted:
            return Outcome("converged", f"no better for {self.schedule.patience} epochs")
        return Outcome("budget") if self.step >= self.budget else None

    def evaluate(self) -> dict[str, float]:
        """The values of a record.

        ``bpd`` are bits per dimension of the validation images, exact on and off the manifold, as log Z is taken into
        account; ``test_bpd``, at the end of the training, those of the test images. ``train_bpd`` is the mean over the
        batches since the last evaluation of what is minimised, without log Z. ``distance`` and ``max_distance`` are
        the mean and the maximum of ‖XXᴴ − I‖_F, ``memory`` the peak so far in GiB.
        """
        log_z = self.log_z()
        record = {"bpd": self.validation_bpd(), "log_z": log_z, "abs_log_z": abs(log_z)}
        if self._batches:
            record["train_bpd"] = self._sum / self._batches / self.nats
        self._sum, self._batches = 0.0, 0
        if self.schedule.exhausted or self.step >= self.budget:
            record["test_bpd"] = self.bpd(self.test)
        distances = self.distances()
        record |= {"distance": distances.mean().item(), "max_distance": distances.max().item()}
        return record | {
            "epoch": self.step / self.loader.steps_per_epoch,
            "lr": self.schedule.lr,
            "memory": _peak_memory(self.device),
        }

    @torch.no_grad()
    def log_z(self) -> float:
        """The logarithm of the partition function."""
        return self.model.log_partition().item()

    @torch.no_grad()
    def bpd(self, images: Tensor) -> float:
        """Bits per dimension of images."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in ranks.local_batches(len(images), EVALUATION_BATCH):
            total += self.model(images[batch]).double().sum()
        return (self.log_z() - ranks.all_reduce_sum(total).item() / len(images)) / self.nats

    def distances(self) -> Tensor:
        """‖XXᴴ − I‖_F of every matrix; computed once for a step."""
        if self._measured[0] != self.step:
            distances = [full(oo.distance(param, side="rows")).flatten() for param in self.parameters()]
            self._measured = (self.step, torch.cat(distances))
        return self._measured[1]

    def validation_bpd(self) -> float:
        """Bits per dimension of the validation images; computed once for a step."""
        if self._validated[0] != self.step:
            self._validated = (self.step, self.bpd(self.validation))
        return self._validated[1]

    def pictures(self) -> dict[str, bytes]:
        """See :meth:`Problem.pictures`: samples, and completions of test images."""
        if not (self.draw and math.isfinite(self.log_z())):
            return {}
        state = sharding.full_state(self.model, [])["model"]
        if not ranks.is_first():
            return {}
        with torch.device("meta"):
            model = SquaredUnitaryCircuit(*self._sizes)
        # on the CPU, so that the draws are the same for every device
        model.load_state_dict({name: tensor.cpu() for name, tensor in state.items()}, assign=True)
        return {
            "samples": draw_samples(model, generator(self.seed, "samples")),
            "inpaintings": draw_inpaintings(model, self.test[:, 0].cpu(), generator(self.seed, "inpaintings")),
        }

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Problem.state_dict`."""
        return {
            "step": self.step,
            **sharding.full_state(self.model, [self.optimizer]),
            "loader": self.loader.state_dict(),
            "schedule": self.schedule.state_dict(),
            "measured": (self._last_loss, self._sum, self._batches),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Problem.load_state_dict`."""
        self.step = state["step"]
        sharding.load_full_state(self.model, [self.optimizer], state)
        self.loader.load_state_dict(state["loader"])
        self.schedule.load_state_dict(state["schedule"])
        self._last_loss, self._sum, self._batches = state["measured"]


def split(images: Images, seed: int) -> tuple[Images, Images]:
    """Images to train on, and others to validate on."""
    count = len(images.labels)
    order = torch.randperm(count, generator=generator(seed, "validation"))
    held_out = max(1, round(VALIDATION * count))
    train, validation = (
        Images(images.pixels[part], images.labels[part]) for part in (order[held_out:], order[:held_out])
    )
    return train, validation


def _peak_memory(device: torch.device) -> float:
    """In GiB, of this process; on a GPU, of its tensors there."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
