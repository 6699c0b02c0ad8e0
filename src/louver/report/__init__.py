"""`report.json` and `report.html` of a set of bundles."""

from louver.errors import need_extra

need_extra("report", "plotly")

from louver.report.contenders import Contender
from louver.report.page import table_rows
from louver.report.write import write_report

__all__ = ["Contender", "table_rows", "write_report"]
