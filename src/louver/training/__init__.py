"""One training path on transformers' Trainer."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers", "accelerate")

from louver.training.finetune import finetune
from louver.training.options import PretrainingOptions, TrainingOptions
from louver.training.pretrain import pretrain

__all__ = ["PretrainingOptions", "TrainingOptions", "finetune", "pretrain"]
