"""What is learned: labelled rows, targets, losses and metrics. Needs torch (extra ``train``)."""

from louver.errors import need_extra

need_extra("train", "torch", "sklearn")

from louver.tasks.classify import Classification
from louver.tasks.data import Columns, Example, Splits, make_splits, read_examples
from louver.tasks.metrics import METRICS, metric

__all__ = ["METRICS", "Classification", "Columns", "Example", "Splits", "make_splits", "metric", "read_examples"]
