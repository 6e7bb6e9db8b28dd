"""Commands whose standard streams are narrow, closed or full: what they print is readable, and never a traceback."""

import os
import subprocess
import sys

import pytest

from tests.orthoptim_experiments.synthetic import write_run

COMMAND = f"{sys.executable} -m orthoptim_experiments.cli"
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ASCII = {"PYTHONIOENCODING": "ascii"}


def shell(command, variables=None, **options):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))
    }
    script = command.replace("orthoptim ", f"{COMMAND} ")
    options = {"capture_output": True, "text": True, **options}
    return subprocess.run(["bash", "-c", script], env={**environment, **(variables or {})}, **options)


@pytest.mark.parametrize(("command", "variables"), [("methods", C_LOCALE), ("experiments pca", ASCII)])
def test_what_a_terminal_has_no_letters_for_is_no_error(command, variables):
    result = shell(f"orthoptim {command}", variables)
    assert (result.returncode, result.stderr) == (0, "")
    assert "POGO-BB" in result.stdout
    assert result.stdout.isascii()


def test_a_report_in_another_locale_is_the_same_page(tmp_path):
    write_run(tmp_path / "größe.jsonl", experiment="größe", methods=("POGO", "½"), seeds=1, steps=3)
    with open(os.fsencode(tmp_path) + b"/\xff.jsonl", "w") as broken:
        broken.write("?\n")
    result = shell("orthoptim report .", C_LOCALE, cwd=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.endswith("\\udcff.jsonl:1: not JSON; it holds no run\n")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(word in page for word in ("<dd>größe.jsonl</dd>", "½"))
    assert {file.suffix for file in (tmp_path / "figures").iterdir()} == {".csv", ".pdf", ".png"}


def test_a_closed_standard_output_is_no_error():
    result = shell("orthoptim methods >&-")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_traceback():
    result = shell("set -o pipefail; orthoptim methods | true")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "")


def test_a_full_disk_under_standard_output_is_one_line():
    result = shell("orthoptim experiments pca >/dev/full")
    assert (result.returncode, result.stderr) == (2, "orthoptim: standard output: No space left on device\n")


def test_files_do_not_take_the_number_of_a_closed_stream(tmp_path):
    """Or what a library prints would be written into the results."""
    code = f"""
import os
from orthoptim_experiments.harness.record_writer import RunFile
from orthoptim_experiments.cli.streams import patient_streams
with patient_streams():
    header = dict(id="1", experiment="pca", config={{}}, environment={{}}, started="now")
    with RunFile({str(tmp_path / "run.jsonl")!r}, header) as file:
        assert file._file > 2
        os.write(1, b"noise")
        os.write(2, b"noise")
"""
    result = subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-c", code])
    assert result.returncode == 0
    assert b"noise" not in (tmp_path / "run.jsonl").read_bytes()
