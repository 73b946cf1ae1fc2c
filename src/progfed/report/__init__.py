"""Reports: records on disk become tables, figures and one self-contained page."""

from progfed.report.write import Report, make_report, save_report, write_report

__all__ = ["Report", "make_report", "save_report", "write_report"]
