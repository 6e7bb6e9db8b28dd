"""Processor time that ``import orthoptim`` adds to ``import torch``: ``python -m tests.import_time``.

Each import runs in a process of its own, from bytecode: without it Python would compile every file anew.
"""

import argparse
import os
import subprocess
import sys

PROGRAM = "import time, torch; start = time.process_time(); import {}; print(1e3 * (time.process_time() - start))"


def measure(module: str) -> float:
    """Milliseconds that importing a module takes when torch is loaded."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)


def main() -> None:
    """Print the least and the median time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    measure("orthoptim")  # writes the bytecode of files that are new
    times = sorted(measure("orthoptim") for _ in range(repeats))
    print(f"import orthoptim, after torch: least {times[0]:.0f} ms, median {times[len(times) // 2]:.0f} ms")


if __name__ == "__main__":
    main()
