"""louver's Predictor over an exported bundle: drive.py WORK OUTPUTS BUNDLE."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from driver import serve

import louver

work, outputs, bundle = sys.argv[1:4]
predictor = louver.Predictor(bundle, truncation="head")
serve(lambda texts: np.stack([p.embedding for p in predictor.predict(texts)]), work, outputs)
