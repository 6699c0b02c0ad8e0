"""Bundles as ONNX graphs."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers")

from louver.export.onnx import export

__all__ = ["export"]
