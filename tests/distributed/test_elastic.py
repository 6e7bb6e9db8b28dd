"""examples/elastic.py under torchrun: ranks are killed at random, and AdamW under the same script is the control."""

import pytest

from tests.distributed.elastic_drill import survives


@pytest.mark.soak
@pytest.mark.parametrize("nproc", [2, 4])
def test_whatever_restart_adamw_survives_ours_survives_with_the_same_bits(tmp_path, nproc):
    kills = 10  # of each of two world sizes
    control, _, _ = survives("adamw", tmp_path, nproc, kills, nproc)
    survived, killed, output = survives("pogo", tmp_path, nproc, kills, nproc)
    assert survived or not control, output[-3000:]
    assert killed >= kills // 2
