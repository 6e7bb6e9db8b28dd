"""Results files from anyone: no traceback, no file outside the folder, no name taken for markup.

A few here; `python -m tests.orthoptim_experiments.hostile` tries more.
"""

import pytest

from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import ResultsError
from tests.orthoptim_experiments import hostile


def test_hostile_files_make_a_page_or_one_line(tmp_path):
    trial = hostile.attack(30, 1, tmp_path, draw_every=15)
    assert trial.violations == []
    assert trial.files == 30
    assert 0 < trial.pages < 30
    assert trial.defects >= 30


def test_every_file_written_by_hand_is_read_or_refused_in_one_line(tmp_path):
    path, refused, defects = tmp_path / "run.jsonl", 0, 0
    for name, data in hostile.attacks(tmp_path):
        path.write_bytes(data)
        try:
            run = load(path)
        except ResultsError as error:
            told, refused = [str(error)], refused + 1
        else:
            told, defects = [*run.defects, run.notice], defects + len(run.defects)
        assert all(line.isprintable() and len(line) < len(str(path)) + 250 for line in told), name
    assert refused > 10
    assert defects > 100


def test_a_page_that_takes_a_name_for_markup_is_found_out():
    sound = '<script type="application/json" id="data">{}</script><script></script><script></script>'
    assert list(hostile.page_violations(sound)) == []
    assert list(hostile.page_violations(sound + f"<{hostile.TAG}>"))
    assert list(hostile.page_violations(sound + "<script>alert(1)</script>"))
    assert list(hostile.page_violations(sound + "<p onclick=alert(1)>"))
    assert list(hostile.page_violations(sound.replace("{}", "{")))


@pytest.mark.soak
def test_many_hostile_files_with_all_figures_drawn(tmp_path):
    assert hostile.attack(400, 1, tmp_path, draw_every=1).violations == []
