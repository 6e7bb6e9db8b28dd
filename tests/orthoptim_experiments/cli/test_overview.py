"""Help: complete, and without torch."""

import subprocess
import sys
from typing import get_args

import pytest
import typer

from orthoptim_experiments.cli import COMMANDS, commands, data_commands, overview, run
from orthoptim_experiments.problems.cnn.training import INIT_NAMES
from orthoptim_experiments.problems.datasets.sources import SOURCES


def test_it_names_every_command_and_no_other():
    assert set(typer.main.get_group(commands.app).commands) == set(COMMANDS)
    assert all(len(line) <= 80 for line in overview().splitlines())


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["data", "fetch", "--help"], ["bench", "--help"]])
def test_help_imports_no_torch(arguments):
    """Seconds of imports, which nobody who asks for help waits for."""
    code = (
        f"import sys; sys.argv[1:] = {arguments}\n"
        "from orthoptim_experiments.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "0 []", result.stderr


def test_what_help_says_without_importing_it_is_so():
    assert run.INITS == INIT_NAMES
    assert get_args(data_commands.Names)[1].help.startswith(", ".join(SOURCES))
