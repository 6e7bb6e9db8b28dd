"""The cost model counts multiply–adds."""

import pytest

from orthoptim.stiefel import cost_model
from orthoptim.stiefel.batches import SYMMETRIC_TILES, symmetric_levels


@pytest.mark.parametrize(
    ("form", "p", "n", "expected"),
    [
        ("direct-n", 2, 10, 2 * 200 + 2 * 40),
        ("direct-p", 2, 10, 6 * 40),
        ("gram", 2, 10, 5 * 40 + 7 * 8),
        ("direct-n", 255, 300, 2 * 255 * 300**2 + 2 * 255**2 * 300),
        ("direct-n", 256, 300, 2 * 256 * 300**2 + 1.8 * 256**2 * 300),
        ("direct-p", 256, 300, 5.6 * 256**2 * 300),
        ("gram", 256, 300, 4.6 * 256**2 * 300 + 7 * 256**3),
    ],
)
def test_the_cost_of_a_form_is_its_products(form, p, n, expected):
    assert cost_model.multiply_adds(form, p, n) == pytest.approx(expected, rel=1e-12)


def test_an_unknown_form_has_no_cost():
    with pytest.raises(ValueError, match="Invalid form: 'cheap'"):
        cost_model.multiply_adds("cheap", 2, 3)


def test_only_matrices_of_up_to_four_columns_are_unrolled():
    assert [cost_model.choose(3, n) for n in (3, 4, 5)] == ["tiny", "tiny", "direct-n"]


def test_gram_is_chosen_for_normalised_directions_only():
    assert cost_model.choose(10, 1000) == "direct-p"
    assert cost_model.choose(10, 1000, normalized=True) == "gram"


def test_a_block_fills_the_cache_and_holds_at_least_one_matrix():
    assert cost_model.block_size(3, 3, 4) == cost_model.block_size(4, 4, 8) == 65536
    assert cost_model.block_size(5, 5, 4) == 15 * 2**17 // 100
    assert cost_model.block_size(4, 8, 8) == 15 * 2**17 // 256
    assert cost_model.block_size(2000, 3000, 8) == 1


def test_a_block_of_a_gpu_holds_what_its_cap_says():
    assert cost_model.block_size(100, 50, 4, "cuda", cap_mb=3.0) == 3 * 2**20 // (100 * 50 * 4)
    assert cost_model.block_size(100, 50, 4, "cuda", cap_mb=0.5) == 2**19 // (100 * 50 * 4)
    assert cost_model.block_size(3, 3, 4, "cuda", cap_mb=1e-6) == 1


def test_a_gpu_cuts_symmetric_products_where_tiles_of_256_fill_it():
    tiles = SYMMETRIC_TILES
    assert symmetric_levels(tiles, 256, 256, "cuda") == 1
    assert symmetric_levels(tiles - 1, 256, 256, "cuda") == 0
    assert symmetric_levels(100 * tiles, 255, 255, "cuda") == 0


def test_a_cpu_cuts_symmetric_products_twice_where_there_is_work_enough_and_those_of_several_once():
    assert symmetric_levels(1, 256, 4096) == 2
    assert symmetric_levels(1, 256, 4095) == 0
    assert symmetric_levels(2, 256, 2048) == 2
    assert symmetric_levels(100, 255, 4096) == 1
    assert symmetric_levels(2, 128, 512) == 1
    assert symmetric_levels(1, 128, 512) == 0
    assert symmetric_levels(100, 127, 4096) == 0
    assert symmetric_levels(100, 128, 511) == 0


def test_a_gpu_takes_gram_where_rows_are_long():
    assert cost_model.choose(64, 1024, normalized=True, device="cuda") == "gram"
    assert cost_model.choose(64, 1023, normalized=True, device="cuda") == "direct-p"
    assert cost_model.choose(64, 1023, normalized=True) == "gram"
    assert cost_model.choose(3, 3, device="cuda") == "direct-n"
