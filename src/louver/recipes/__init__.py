"""Recipes: the whole way as one file, gated and resumable."""

from louver.errors import need_extra

need_extra("train", "torch", "transformers", "sklearn")

from louver.recipes.runner import run
from louver.recipes.schema import Recipe, read_recipe

__all__ = ["Recipe", "read_recipe", "run"]
