"""What is learned: labelled rows, targets, losses and metrics. Needs torch (extra ``train``)."""

from louver.errors import need_extra

need_extra("train", "torch", "sklearn")

from louver.tasks.answer import Answering
from louver.tasks.classify import Classification
from louver.tasks.data import Columns, Example, read_examples
from louver.tasks.features import Features, collate
from louver.tasks.metrics import METRICS, metric
from louver.tasks.named import learn, task_of
from louver.tasks.splits import Splits, make_splits
from louver.tasks.tag import Tagging
from louver.tasks.task import TASKS, Batch, Feature, Task, tuned

__all__ = [
    "METRICS",
    "TASKS",
    "Answering",
    "Batch",
    "Classification",
    "Columns",
    "Example",
    "Feature",
    "Features",
    "Splits",
    "Tagging",
    "Task",
    "collate",
    "learn",
    "make_splits",
    "metric",
    "read_examples",
    "task_of",
    "tuned",
]
