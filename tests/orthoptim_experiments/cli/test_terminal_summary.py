"""What is printed when a run has ended."""

import io

from rich.console import Console

from orthoptim_experiments.cli.terminal_summary import verdicts
from orthoptim_experiments.harness.claims import Claim, Verdict


def test_verdicts_show_what_is_claimed_and_measured_where_it_was():
    def claim(says):
        return Claim(says, lambda run: Verdict("not measured", ""))

    findings = [
        (claim("water is [wet]"), Verdict("confirmed", "100 %")),
        (claim("the moon is far"), Verdict("not measured", "not run: moon")),
        (claim("pi is 3"), Verdict("refuted", "3.14")),
    ]
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(verdicts(findings))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines == [["confirmed", "water", "is", "[wet]"], ["100", "%"], ["refuted", "pi", "is", "3"], ["3.14"]]
