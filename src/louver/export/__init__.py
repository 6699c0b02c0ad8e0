"""Bundles as ONNX graphs, and as model repositories of Triton."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers")

from louver.export.onnx import export
from louver.export.triton import to_triton

__all__ = ["export", "to_triton"]
