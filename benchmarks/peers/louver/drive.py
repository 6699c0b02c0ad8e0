"""louver's Predictor over an exported bundle: drive.py WORK OUTPUTS BUNDLE ENGINE."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from driver import serve

import louver

work, outputs, bundle, engine = sys.argv[1:5]
predictor = louver.Predictor(bundle, truncation="head", engine=engine)
serve(lambda texts: np.stack([p.embedding for p in predictor.predict(texts)]), work, outputs)
