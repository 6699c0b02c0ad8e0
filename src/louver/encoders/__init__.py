"""Hugging Face encoders with a pattern under them: load, extend, pool."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers")

from louver.encoders.extend import extend  # noqa: E402
from louver.encoders.load import load, load_plain  # noqa: E402
from louver.encoders.plug import FAMILIES, plug, register  # noqa: E402
from louver.encoders.pooling import Reader, read_bundle  # noqa: E402

__all__ = ["FAMILIES", "Reader", "extend", "load", "load_plain", "plug", "read_bundle", "register"]
