"""`--sharded`: every rank holds its part of each parameter; the training is that of one process, and is resumed."""

import pytest
import torch
from torch.distributed.tensor import DTensor

from orthoptim_experiments.harness import runner
from orthoptim_experiments.harness.record_reader import load
from tests.orthoptim_experiments.helpers import SMALL_CNN, Quiet, StoppingOneRank, assert_close, make_job, unlike
from tests.orthoptim_experiments.together import together

CNN = SMALL_CNN | {"epochs": 1.0}
CIRCUITS = {"train_images": 300, "test_images": 101, "epochs": 1.0}
CASES = [
    ("cnn", "none", "Adam", CNN),
    ("cnn", "kernels", "POGO", CNN),
    ("cnn", "filters", "RGD", CNN),  # its state is numbers alone
    ("circuits", None, "POGO", CIRCUITS),
]


def job(out, case, nproc):
    name, variant, method, sizes = case
    return make_job(out, name, (method,), nproc, variant=variant, sharded=nproc > 1, **sizes)


def train(out):
    """All cases: cut and resumed, and straight on; and what kind of parameters the optimizers had."""
    found = []
    for number, case in enumerate(CASES):
        cut, straight = (job(out / f"{number}{kind}", case, 2) for kind in ("cut", "straight"))
        with pytest.raises(runner.Interrupted):
            runner.run(cut, StoppingOneRank())
        runner.run(cut, Quiet())
        runner.run(straight, Quiet())
        problem = runner._begin(straight, straight.methods[0], 0)
        params = [param for group in problem.optimizer.param_groups for param in group["params"]]
        found.append((cut.path, straight.path, all(isinstance(param, DTensor) for param in params)))
    return found


def test_it_trains_what_one_process_trains_and_is_resumed_exactly(tmp_path):
    threads = torch.get_num_threads()
    everywhere = together(2, train, tmp_path)
    for case, *found in zip(CASES, *everywhere, strict=True):
        (cut, straight, sharded), _ = found
        assert sharded
        one = runner.run(job(tmp_path / "alone", case, 1), Quiet()).trials[-1]
        (other,), (resumed,) = load(straight).trials, load(cut).trials
        assert other.status == one.status == "budget", other.message
        assert unlike(other, resumed) == set()
        assert other.digest == resumed.digest != ""
        assert one.pictures.keys() == other.pictures.keys()
        assert_close(one, other)
    torch.set_num_threads(threads)
