"""SentenceTransformer.encode on torch: drive.py WORK OUTPUTS MODEL BATCH."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from driver import serve
from sentence_transformers import SentenceTransformer

work, outputs, model, batch = sys.argv[1:5]
encoder = SentenceTransformer(model, device="cpu")
encoder.max_seq_length = 512
serve(lambda texts: encoder.encode(texts, batch_size=int(batch), show_progress_bar=False), work, outputs)
