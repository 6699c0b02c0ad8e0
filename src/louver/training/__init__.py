"""One training path on transformers' Trainer."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers", "accelerate")

from louver.training.finetune import finetune  # noqa: E402
from louver.training.options import TrainingOptions  # noqa: E402

__all__ = ["TrainingOptions", "finetune"]
