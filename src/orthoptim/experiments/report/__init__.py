"""The report: one self-contained HTML page on any number of runs, and the figures beside it."""

from orthoptim.experiments.report.exhibits import Picture, Table
from orthoptim.experiments.report.section import Finding, Section
from orthoptim.experiments.report.write import ReportError, find_runs, write_report

__all__ = ["Finding", "Picture", "ReportError", "Section", "Table", "find_runs", "write_report"]
