"""Smaller and faster bundles at a measured price."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers")

from louver.compression.distill import DistillOptions, distill
from louver.compression.quantize import QuantizeOptions, quantize

__all__ = ["DistillOptions", "QuantizeOptions", "distill", "quantize"]
