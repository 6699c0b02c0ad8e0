"""One training path on transformers' Trainer."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers", "accelerate")

from louver.encoders.adapters import AdapterOptions
from louver.encoders.words import Template
from louver.training.adapting import attach
from louver.training.cloze import cloze
from louver.training.contrast import contrast
from louver.training.finetune import finetune
from louver.training.options import ClozeOptions, ContrastOptions, PretrainingOptions, TrainingOptions
from louver.training.pretrain import pretrain

__all__ = [
    "AdapterOptions",
    "ClozeOptions",
    "ContrastOptions",
    "PretrainingOptions",
    "Template",
    "TrainingOptions",
    "attach",
    "cloze",
    "contrast",
    "finetune",
    "pretrain",
]
