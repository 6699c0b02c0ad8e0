"""One training path on transformers' Trainer."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers", "accelerate")

from louver.training.finetune import finetune
from louver.training.options import TrainingOptions

__all__ = ["TrainingOptions", "finetune"]
