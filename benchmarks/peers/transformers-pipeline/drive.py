"""transformers' feature-extraction pipeline, means over real tokens: drive.py WORK OUTPUTS MODEL BATCH."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from driver import serve
from transformers import AutoTokenizer, pipeline

work, outputs, model, batch = sys.argv[1:5]
tokenizer = AutoTokenizer.from_pretrained(model)
pipe = pipeline("feature-extraction", model=model, tokenizer=tokenizer, device="cpu")


def answer(texts):
    found = pipe(texts, batch_size=int(batch), truncation=True, max_length=512, return_tensors=True)
    rows = []
    for text, states in zip(texts, found, strict=True):
        count = len(tokenizer(text, truncation=True, max_length=512)["input_ids"])
        rows.append(states[0, :count].mean(0).numpy())  # the pipeline gives padded states back
    return np.stack(rows)


serve(answer, work, outputs)
