"""What is printed when a run has ended."""

import io

from rich.console import Console

from orthoptim_experiments.cli.terminal_summary import verdicts
from orthoptim_experiments.harness.claims import Claim, Verdict


def test_verdicts_show_what_is_claimed_and_measured_the_papers_apart_from_ours_and_by_scale():
    findings = [
        (Claim("water is [wet]", lambda run: None, "it is wet"), Verdict("holds", "100 %")),
        (Claim("the moon is far", lambda run: None, "far"), Verdict("not measured", "not run: moon")),
        (Claim("pi is 3", lambda run: None), Verdict("fails", "3.14")),
    ]
    for paper_scale, held, failed in ((False, "holds here", "does not hold here"), (True, "confirmed", "refuted")):
        console = Console(width=70, record=True, file=io.StringIO())
        console.print(verdicts(findings, paper_scale))
        shown = console.export_text()
        assert [" ".join(line.split()) for line in shown.splitlines()][1:-1] == [
            f"{held} water is [wet]",
            "100 %",
            "Our own",
            f"{failed} pi is 3",
            "3.14",
        ]
        assert ("paper scale not run" in shown) != paper_scale
