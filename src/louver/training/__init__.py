"""One training path on transformers' Trainer."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers", "accelerate")

from louver.training.contrast import contrast
from louver.training.finetune import finetune
from louver.training.options import ContrastOptions, PretrainingOptions, TrainingOptions
from louver.training.pretrain import pretrain

__all__ = ["ContrastOptions", "PretrainingOptions", "TrainingOptions", "contrast", "finetune", "pretrain"]
