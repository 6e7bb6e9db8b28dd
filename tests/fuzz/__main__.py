"""Run random sequences of operations; see :mod:`tests.fuzz`."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from tests.fuzz.draw import Draw
from tests.fuzz.expectations import Violation
from tests.fuzz.machine import Machine
from tests.fuzz.record import write_record
from tests.fuzz.shrink import as_python, shrink


def main(arguments: list[str] | None = None) -> int:
    """Run the sequences, print what they broke as small sequences, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence, to run one again")
    parser.add_argument("--without", nargs="*", default=[], help="kinds of gradients or overwriting to leave out")
    parser.add_argument("--shrink", type=int, default=400, help="attempts to make a failing sequence smaller")
    parser.add_argument("--most", type=int, default=20, help="stop after so many violations")
    parser.add_argument("--output", type=Path, help="a JSON file for the counts")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)

    began = shown = time.monotonic()
    counts: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for number in range(options.first, options.first + options.sequences):
        begin, operations = Draw(options.seed, number, options.without).sequence()
        counts["sequences"] += 1
        counts["operations"] += len(operations)
        machine = Machine(begin)
        try:
            for operation in operations:
                machine.apply(operation)
        except Violation as violation:
            broken[violation.rule] += 1
            small = shrink((begin, operations), violation.rule, options.shrink)
            print(f"\nseed {options.seed}, sequence {number}: {violation}\n{as_python(small)}\n", flush=True)
        counts["steps"] += machine.steps
        now = time.monotonic()
        if now - shown > 30:
            shown = now
            done = counts["sequences"]
            print(f"{done} of {options.sequences} sequences, {counts['steps']} steps, {now - began:.0f} s", flush=True)
        if broken.total() >= options.most:
            break
    seconds = round(time.monotonic() - began, 1)
    total = broken.total()
    summary = f"{counts['sequences']} sequences, {counts['steps']} steps, {total} violations, {seconds} s"
    print(summary, dict(broken) if broken else "")
    command = f"python -m tests.fuzz --sequences {options.sequences} --seed {options.seed}"
    write_record(options.output, command, seed=options.seed, **counts, violations=total, seconds=seconds)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
