"""Redraws the pictures of the docs: ``make docs``."""

from pathlib import Path

from louver.patterns import parse
from louver.patterns.picture import png

PICTURES = {
    "full": "full",
    "causal": "causal",
    "global": "global(3)",
    "random": "random(8, blocks=2)",
    "axial": "axial(8)",
    "kept": "window(12) & kept(0.4)",
    "longformer": "longformer(8, tokens=2)",
    "causal-strided": "causal & strided(16, local=4)",
    "window-global": "window(6) | global(1)",
    "blocks": "blocks(8)",
    "causal-window": "causal & window(12)",
    "dilated": "window(4, dilation=3) | global(2)",
    "strided": "strided(16, local=4)",
    "bigbird": "bigbird(8, random=1, tokens=1)",
    "window2d": "window2d(8, radius=1, extra=1)",
    "prefix": "prefix(12) & window(20)",
}

if __name__ == "__main__":
    folder = Path(__file__).parent / "pictures"
    folder.mkdir(exist_ok=True)
    for name, pattern in PICTURES.items():
        png(parse(pattern), folder / f"{name}.png", length=64, size=256)
