"""The store: what is written is read back, whatever was cut off; what is corrupt is told of, left out and kept."""

import json
import math
import resource
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthoptim_experiments.harness import record_reader, records
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.record_writer import RunFile
from orthoptim_experiments.harness.records import ResultsError
from tests.orthoptim_experiments.synthetic import HEADER, write_trial

values = st.floats(width=64)
rows = st.lists(st.dictionaries(st.sampled_from(["loss", "gap", "distance"]), values), min_size=1, max_size=8)


@given(rows)
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    with RunFile(path, HEADER) as file:
        file.append("trial", method="POGO-½", seed=3, options={"lr": 0.5, "betas": (0.9, 0.999)}, environment={})
        for step, row in enumerate(rows):
            file.append("record", method="POGO-½", seed=3, step=step, time=float(step), **row)
    run = load(path)
    assert (run.id, run.experiment, run.config, run.notice) == ("0123456789", "pca", {"n": 8}, "")
    (trial,) = run.trials
    assert (trial.method, trial.seed, trial.status) == ("POGO-½", 3, None)
    assert trial.options == {"lr": 0.5, "betas": [0.9, 0.999]}
    assert all(len(column) == len(rows) for column in trial.records.values())
    for step, row in enumerate(rows):
        for name in trial.records.keys() - {"step", "time"}:
            wrote, read = row.get(name, math.nan), trial.records[name][step]
            assert read == wrote if math.isfinite(wrote) else math.isnan(read)


@given(st.data())
def test_cut_anywhere_it_loads_and_goes_on(tmp_path_factory, data):
    path = write_trial(tmp_path_factory.mktemp("run") / "run.jsonl")
    whole = path.read_bytes()
    cut = data.draw(st.integers(whole.index(b"\n") + 1, len(whole)))
    path.write_bytes(whole[:cut])
    torn = whole[:cut].splitlines()[-1] not in whole.splitlines()  # a line may lack its line feed alone
    run = load(path)
    assert bool(run.notice) == torn
    with RunFile(path, HEADER) as file:
        assert bool(file.run.notice) == torn
        file.append("trial", method="RGD", seed=0, options={}, environment={})
    again = load(path)
    assert (again.notice, again.defects) == ("", [])
    aside = path.with_name("run.jsonl.torn")
    assert (aside.read_bytes() if torn else b"\n") == whole[:cut].rpartition(b"\n")[2] * torn + b"\n"
    assert again.methods == [*run.methods, "RGD"]
    assert [len(trial) for trial in again.trials] == [*(len(trial) for trial in run.trials), 0]


@pytest.mark.parametrize("cut", [0, 1, 20])
def test_a_file_without_a_whole_first_line_begins_anew(tmp_path, cut):
    path = write_trial(tmp_path / "run.jsonl")
    start = path.read_bytes()[:cut]
    path.write_bytes(start)
    with pytest.raises(ResultsError, match="holds no run"):
        load(path)
    with RunFile(path, HEADER) as file:
        assert file.run.trials == []
        assert ("put aside, in run.jsonl.torn" in file.run.notice) == bool(cut)
    assert load(path).id == "0123456789"
    assert not cut or (tmp_path / "run.jsonl.torn").read_bytes() == start + b"\n"  # nothing is lost


def test_a_run_without_any_line_feed_is_kept(tmp_path):
    path = write_trial(tmp_path / "run.jsonl")
    header = path.read_bytes().splitlines()[0]
    path.write_bytes(header)
    assert load(path).config == {"n": 8}
    with RunFile(path, {**HEADER, "config": {}}) as file:
        assert (file.run.config, file.run.notice) == ({"n": 8}, "")
        file.append("trial", method="POGO", seed=0, options={}, environment={})
    assert path.read_bytes().startswith(header + b"\n{")


@pytest.mark.parametrize("data", [b'{"notes": "mine"}', b"[1, 2]\n", b"some text\n"])
def test_a_file_that_is_no_run_is_not_overwritten(tmp_path, data):
    path = tmp_path / "run.jsonl"
    path.write_bytes(data)
    with pytest.raises(ResultsError, match=r"run\.jsonl:1: .*; it holds no run"):
        RunFile(path, HEADER)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\x00\xff garbage", "not UTF-8"),
        (b'{"kind":"record","method":"POGO","seed":0,"time":1}', "it has no 'step'"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":1,"time":1,"loss":"low"}', "'low' is not a number"),
        (b'{"kind":"record","method":"RGD","seed":0,"step":1,"time":1}', "has not begun"),
        (b'{"kind":"end","method":"POGO","seed":0,"status":"great"}', "unknown status 'great'"),
        (b'{"kind":"picture","method":"POGO","seed":0,"name":"samples","png":"?"}', "png is not base64"),
        (b'{"kind":"more","method":"POGO","seed":0}', "unknown kind"),
        (b"[1, 2]", "[1, 2] is not a JSON object"),
        (b"", "not JSON"),
        (b'{"kind":"run"}', "only the first line may be of kind 'run'"),
        (b'{"kind":["trial"]}', "kind ['trial'] is not a text"),
        (b'{"kind":"end","method":["POGO"],"seed":0,"status":"budget"}', "method ['POGO'] is not a text"),
        (b'{"kind":"end","method":"POGO","seed":true,"status":"budget"}', "seed True is not a whole number"),
        (b'{"kind":"end","method":"POGO","seed":0,"seed":0,"status":"budget"}', "it has 'seed' twice"),
        (b'{"kind":"end","method":"POGO","seed":0,"status":["budget"]}', "status ['budget'] is not a text"),
        (b'{"kind":"end","method":"POGO","seed":0,"status":"budget","message":"\\ud800"}', "no valid Unicode"),
        (b'{"kind":"end","method":"PO\\u001bGO","seed":0}', "'PO\\x1bGO' has characters that cannot be shown"),
        (b'{"kind":"end","method":"' + b"n" * 999 + b'","seed":0}', "has 999 characters, not 1 to 200"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":9,"time":1,"loss":1' + b"0" * 400 + b"}", "not a finite"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":9,"time":1,"loss":' + b"9" * 9999 + b"}", "many digits"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":9,"time":1,"loss":1e999}', "'loss' inf is not a finite"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":9,"time":1,"loss":NaN}', "NaN is not JSON"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":9,"time":1,"loss":' + b"[" * 100000, "nested too deeply"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":-1,"time":1}', "step -1 is out of range"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":9,"time":-1}', "time -1 is out of range"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":0,"time":1}', "step 0 does not come after step 0"),
        (b'{"kind":"picture","method":"POGO","seed":0,"name":"samples","png":"AAAA"}', "png is not a PNG file"),
        (b'{"kind":"' + b"x" * (9 << 20) + b'"}', "more than 8388608"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "line",
)
def test_a_corrupt_line_is_told_by_file_and_line_and_the_others_are_used(tmp_path, line, reason):
    path = write_trial(tmp_path / "run.jsonl")
    sound = load(path).trials
    lines = path.read_bytes().split(b"\n")
    lines.insert(3, line)
    path.write_bytes(b"\n".join(lines))
    run = load(path)
    (defect,) = run.defects
    assert defect.startswith(f"{path}:4: ")
    assert reason in defect
    assert defect.isprintable()
    assert len(defect) < len(str(path)) + 200
    assert run.trials == sound
    with pytest.raises(ResultsError, match="repair or delete the file") as caught:  # a writer does not guess
        RunFile(path, HEADER)
    assert str(caught.value).startswith(defect)
    assert path.read_bytes() == b"\n".join(lines)


def test_a_wrong_setting_is_left_out_and_the_run_is_used(tmp_path):
    path = write_trial(tmp_path / "run.jsonl")
    config = {"tolerance": "1e-6", "p": 10**400, "dtype": ["float32"], "n": 8, "deep": [[[[[[[[[[]]]]]]]]]], "": 1}
    lines = path.read_bytes().split(b"\n")
    lines[0] = json.dumps({"kind": "run", **HEADER, "config": config}).encode()
    lines[1] = lines[1].replace(b'"options": {"lr": 0.5}', b'"options": {"lr": 0.5, "x": 1e999}')
    path.write_bytes(b"\n".join(lines))
    run = load(path)
    assert run.config == {"n": 8}
    assert run.trials[0].options == {"lr": 0.5}
    assert [defect.removeprefix(f"{path}:") for defect in run.defects] == [
        "1: config 'tolerance' '1e-6' is not a number",
        f"1: config 'p' {'1' + '0' * 17}...{'0' * 19} is out of range",
        "1: config 'dtype' ['float32'] is not a text",
        "1: config 'deep' is nested too deeply",
        "1: a name in config '' has 0 characters, not 1 to 200",
        "2: options 'x' inf is not a finite number",
    ]


def test_many_defects_are_counted(tmp_path):
    path = write_trial(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes() + b"?\n" * (record_reader.MOST_DEFECTS + 7))
    run = load(path)
    assert len(run.defects) == record_reader.MOST_DEFECTS + 1
    assert run.defects[-1] == f"{path}: 7 more defects"


def test_methods_columns_and_trials_are_not_without_number(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, HEADER) as file:
        for at in range(record_reader.MOST_METHODS + 1):
            file.append("trial", method=f"m{at}", seed=0, options={}, environment={})
        file.append("record", method="m0", seed=0, step=0, time=0.0, **{f"c{i}": 0.0 for i in range(99)})
    run = load(path)
    assert len(run.trials) == record_reader.MOST_METHODS
    assert [defect.partition(": ")[2] for defect in run.defects] == ["more than 200 methods", "more than 60 columns"]


def test_texts_that_are_no_unicode_are_written_so_that_they_can_be_read(tmp_path):
    path = write_trial(tmp_path / "run.jsonl", end=None)
    with RunFile(path, HEADER) as file:
        file.append("end", method="POGO", seed=0, status="failed", message="no file \udcff")
    run = load(path)
    assert (run.defects, run.trials[0].message) == ([], "no file ?")


def test_links_and_devices_are_not_written_through(tmp_path):
    target = write_trial(tmp_path / "elsewhere")
    before = target.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(target)
    with pytest.raises(ResultsError, match=r"cannot write .*link\.jsonl: it is a symbolic link"):
        RunFile(tmp_path / "link.jsonl", HEADER)
    with pytest.raises(ResultsError, match="cannot write /dev/full: not a regular file"):
        RunFile("/dev/full", HEADER)
    path = write_trial(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes() + b"{")
    (tmp_path / "run.jsonl.torn").symlink_to(target)
    with pytest.raises(ResultsError, match=r"cannot write .*\.torn: it is a symbolic link; nothing is changed"):
        RunFile(path, HEADER)
    assert target.read_bytes() == before
    assert path.read_bytes().endswith(b"}\n{")


def test_a_resume_voids_later_records_and_a_new_beginning_all(tmp_path):
    path = write_trial(tmp_path / "run.jsonl", end=None)
    with RunFile(path, HEADER) as file:
        file.append("resume", method="POGO", seed=0, step=2)
        file.append("record", method="POGO", seed=0, step=3, time=9.0, loss=7.0)
    assert load(path).trials[0].records["step"] == [0, 1, 2, 3]
    assert load(path).trials[0].records["loss"][-1] == 7.0
    with RunFile(path, HEADER) as file:
        file.append("trial", method="POGO", seed=0, options={"lr": 1.0}, environment={})
    (trial,) = load(path).trials
    assert len(trial) == 0
    assert trial.options == {"lr": 1.0}


def test_only_one_process_writes_at_a_time(tmp_path):
    path = write_trial(tmp_path / "run.jsonl")
    with RunFile(path, HEADER):
        code = "import sys; from orthoptim_experiments.harness.record_writer import *\nRunFile(sys.argv[1], {})"
        other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        assert "is being written by another process" in other.stderr
        assert load(path).trials  # readers are let in
    RunFile(path, HEADER).close()


def test_what_cannot_be_written_whole_is_taken_back(tmp_path):
    path = tmp_path / "run.jsonl"
    before, limit = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with RunFile(path, HEADER) as file:
            file.append("trial", method="POGO", seed=0, options={}, environment={})
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 300, limit[1]))
            file.append("record", method="POGO", seed=0, step=0, time=0.0)
            with pytest.raises(ResultsError, match=r"cannot write .*run\.jsonl: File too large; earlier results"):
                file.append("record", method="POGO", seed=0, step=1, time=0.0, **{f"name{i}": 0.0 for i in range(30)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    run = load(path)
    assert run.notice == ""
    assert len(run.trials[0]) == 1


def test_what_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot write"):
        RunFile(tmp_path / "file" / "run.jsonl", HEADER)
    with pytest.raises(ResultsError, match="cannot read"):
        load(tmp_path / "none.jsonl")


def test_every_line_is_strict_json(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, HEADER) as file:
        file.append("trial", method="POGO", seed=0, options={"limit": math.inf}, environment={})
        file.append("record", method="POGO", seed=0, step=0, time=0.0, loss=math.nan)

    def refuse(name):
        raise AssertionError(name)

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert lines[1]["options"] == {"limit": None}
    assert lines[2]["loss"] is None
    assert set(records.STATUSES) == {"converged", "budget", "diverged", "timeout", "failed"}
