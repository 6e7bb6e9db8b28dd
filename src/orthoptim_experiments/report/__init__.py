"""The report: one self-contained HTML page on any number of runs, and the figures beside it."""

from orthoptim_experiments.report.section import Section, describe
from orthoptim_experiments.report.write import claims_table, find_runs, write_figures, write_report

__all__ = ["Section", "claims_table", "describe", "find_runs", "write_figures", "write_report"]
