"""Arguments that cannot be used: one line, exit code 2, and nothing is written."""

import pytest

from orthoptim_experiments.cli import torchrun
from tests.orthoptim_experiments.helpers import invoke

RUN = [
    ("pca --scale huge", "unknown scale 'huge'; there are tiny, laptop, paper"),
    ("pac", "unknown experiment 'pac'; there are "),
    ("pca --methods POGO,Pogo", "unknown method 'Pogo' in pca; there are POGO, POGO-safe"),
    ("pca --seeds none", "seeds 'none' make no sense"),
    ("pca --seeds 0", "seeds '0' make no sense"),
    ("pca --variant book", "unknown variant 'book'; there are code, paper"),
    ("pca --dtype int8", "unknown dtype 'int8'; there are float32, float64"),
    ("pca --device cuda:99", "device 'cuda:99' is not available here"),
    ("pca --device toaster", "device 'toaster' is not available here"),
    ("pca --units 4", "pca has no option --units"),
    ("pca --set POGO.lr=-1", "POGO:lr=-1: Invalid learning rate: -1"),
    ("pca --set POGO.lr=fast", "POGO:lr=fast: "),
    ("pca --set POGO.speed=1", "POGO has no option 'speed'"),
    ("pca --set lr=1", "cannot read --set 'lr=1'"),
    ("pca --methods POGO --set RGD.lr=1", "RGD is not among the methods of this run"),
    ("pca --nproc 2", "pca runs in one process"),
    ("cnn --constraint all", "unknown variant 'all'; there are filters, kernels, none"),
    ("cnn --constraint none --methods POGO", "unknown method 'POGO' in cnn; there are Adam"),
    ("cnn --widths 8,8", "--widths '8,8' makes no sense; write something like 8,16,16"),
    ("cnn --epochs -1", "--epochs '-1' makes no sense"),
    ("cnn --epochs inf", "--epochs 'inf' makes no sense"),
    ("cnn --batch-size 2.5", "--batch-size '2.5' makes no sense"),
    ("cnn --batch-size 501", "a batch of 501 cannot be taken from 500 images"),
    ("cnn --init zero", "unknown init 'zero'; there are auto, project, random"),
    ("cnn --data-dir nothing --scale laptop", "run `orthoptim data fetch cifar10`"),
    ("cnn --nproc 101", "101 processes are more than the 100 examples of a batch"),
    ("cnn --nproc 2 --device meta", "--nproc is for cpu and cuda, not for meta"),
    ("cnn --nproc 2 --device cpu:0", "use --device cpu with --nproc"),
    ("cnn --nproc 2 --set POGO.lr=-1", "POGO:lr=-1: Invalid learning rate: -1"),
    ("cnn --sharded", "--sharded splits a model among processes: say how many, with --nproc"),
    ("vit --dim 7", "dim 7 is no multiple of the number of heads, 2"),
    ("vit --data-dir nothing --scale laptop", "run `orthoptim data fetch cifar10`"),
    ("circuits --units 18", "18 units are more than the 17 values of a pixel"),
    ("circuits --nproc 2 --units 18", "18 units are more than the 17 values of a pixel"),
    ("circuits --nproc 2 --batch-size 1", "2 processes are more than the 1 examples of a batch"),
    ("circuits --units four", "--units 'four' makes no sense; write something like 2"),
    ("circuits --train-images 50", "a batch of 50 cannot be taken from 48 images"),
    ("circuits --data-dir nothing --scale laptop", "run `orthoptim data fetch mnist`"),
]


@pytest.mark.parametrize(("arguments", "message"), RUN, ids=[arguments for arguments, _ in RUN])
def test_run(tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(torchrun, "launch", None)  # no process is started
    name, *options = arguments.split()
    refused(invoke("run", name, "--scale", "tiny", *options, "--out", tmp_path / "out"), message)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench --workload W99", "unknown workload 'W99'"),
        ("bench --base lion", "unknown base 'lion'"),
        ("bench --device cuda:99", "device 'cuda:99' is not available here"),
        ("scale --models 8T", "unknown model '8T'; there are 0.1B, 7B, 70B, adapters"),
        ("scale --world-sizes many", "world sizes 'many' make no sense; write something like 8,64,1024"),
        ("scale --world-sizes 8,-1", "world sizes '8,-1' make no sense; write something like 8,64,1024"),
        ("scale --world-sizes 1", "a world of 1 has nobody to share matrices with; use 2 or more"),
        ("data fetch imagenet", "unknown data set 'imagenet'; there are cifar10, mnist"),
        ("data check imagenet", "unknown data set 'imagenet'; there are cifar10, mnist"),
        ("data fetch --mirror http://127.0.0.1:9", "--mirror goes with one data set"),
        ("methods SDM", "unknown method 'SDM'"),
        ("experiments pac", "unknown experiment 'pac'"),
    ],
)
def test_other_commands(arguments, message):
    refused(invoke(*arguments.split()), message)


def refused(result, message):
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line]
    assert line.startswith("orthoptim: ")
    assert message in line
