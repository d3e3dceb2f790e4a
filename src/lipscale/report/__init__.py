"""Figures, tables and the page that people open."""

from lipscale.report.page import write_report

__all__ = ["write_report"]
