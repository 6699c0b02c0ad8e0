"""`report.json` and `report.html` of a set of bundles."""

from louver.errors import need_extra

need_extra("report", "plotly")

from louver.report.contenders import Contender  # noqa: E402
from louver.report.page import table_rows  # noqa: E402
from louver.report.write import write_report  # noqa: E402

__all__ = ["Contender", "table_rows", "write_report"]
