"""Figures, tables and the page that people open."""

from lipscale.report.page import figures_folder, write_report

__all__ = ["figures_folder", "write_report"]
