"""File names: whatever a name is, a file of it lies in its folder, and no two names share one."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthoptim_experiments.harness.filenames import LONGEST, distinct_stems, file_stem
from orthoptim_experiments.harness.records import ResultsError
from orthoptim_experiments.harness.trial_checkpoint import Checkpoint
from tests.orthoptim_experiments.hostile import NAMES

names = st.one_of(st.sampled_from(NAMES), st.text(st.characters(), max_size=300))


@given(names)
def test_a_stem_is_the_name_of_a_file_in_its_folder(name):
    stem = file_stem(name)
    assert Path(stem).name == stem
    assert not set(stem) & set('/\\:*?"<>|\0\n')
    assert stem.isascii()
    assert stem.isprintable()
    assert not stem.startswith((".", " "))
    assert not stem.endswith((".", " "))
    assert 0 < len(os.fsencode(stem)) <= LONGEST
    assert stem.partition(".")[0].casefold() not in ("con", "prn", "aux", "nul", "com1", "lpt1")
    assert file_stem(name) == stem


@pytest.mark.parametrize("name", ["pca-0123456789", "a b", "1.5+2=x_y"])
def test_a_sound_name_stays(name):
    assert file_stem(name) == name


@given(st.lists(names, max_size=12))
def test_distinct_stems_differ_in_more_than_case(all_names):
    stems = distinct_stems(all_names)
    assert len(stems) == len(all_names)
    assert len({stem.casefold() for stem in stems}) == len(stems)
    assert stems[:1] == [file_stem(name) for name in all_names[:1]]


def test_every_hostile_name_can_be_written(tmp_path):
    for stem in distinct_stems(NAMES):
        (tmp_path / f"{stem}.png").touch()
    assert len(list(tmp_path.iterdir())) == len(NAMES)


def test_checkpoints_are_not_written_through_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultsError, match=r"\.checkpoints.* is a symbolic link"):
        Checkpoint(tmp_path / ".checkpoints" / "trial.pt").save({"step": 1})
    assert not list((tmp_path / "elsewhere").iterdir())
