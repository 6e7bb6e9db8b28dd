"""The help of the command itself: complete, and without torch."""

import subprocess
import sys

import typer

from orthoptim_experiments.cli import COMMANDS, commands, overview


def test_it_names_every_command_and_no_other():
    assert set(typer.main.get_group(commands.app).commands) == set(COMMANDS)
    assert all(len(line) <= 80 for line in overview().splitlines())


def test_it_imports_neither_torch_nor_typer():
    code = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from orthoptim_experiments.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, sorted({'torch', 'typer', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "0 []"
