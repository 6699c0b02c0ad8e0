"""Hugging Face encoders with a pattern under them: load, extend, pool."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers")

from louver.encoders.create import create
from louver.encoders.extend import extend
from louver.encoders.load import load, load_plain
from louver.encoders.plug import FAMILIES, plug, register
from louver.encoders.pooling import Reader, read_bundle
from louver.encoders.recommend import Recommendation, recommend
from louver.encoders.sentence import sentence_transformer
from louver.encoders.vocabulary import add_words

__all__ = [
    "FAMILIES",
    "Reader",
    "Recommendation",
    "add_words",
    "create",
    "extend",
    "load",
    "load_plain",
    "plug",
    "read_bundle",
    "recommend",
    "register",
    "sentence_transformer",
]
