"""An epoch of hidden words on short texts: packed rows, batches of similar lengths, and batches of one width.

    python benchmarks/packing.py --json packing.json
    python benchmarks/packing.py --batch 8

All three train MiniLM-L3 on the same texts (critics' lines, mean 27 tokens) with as many texts a step, and are timed
in turns; the loss on the same held-out texts is measured after one epoch of each. `transformers` is the same model as
its own library trains it: batches of similar lengths, logits for every token.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import BertForMaskedLM

import louver
from louver.encoders import positions
from louver.encoders.words import masked_model
from louver.measure.machine import describe
from louver.tasks import Batch
from louver.text import Tokenizer
from louver.text.masking import IGNORED, Masking
from louver.text.rows import read_rows
from louver.training.corpus import Corpus, MaskedRows, collate_rows
from louver.training.masked import MaskedWords

MODEL = "data/models/minilm-l3"
ROOM = 512


class AllWords(torch.nn.Module):
    """A masked language model of transformers as it is: logits for every token, asked or not."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits.flatten(0, 1), batch["asked"].flatten()


def batches(rows: MaskedRows, kind: str, size: int, seed: int) -> list[list[int]]:
    """Return the rows of each step; `size` rows."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    if kind in ("grouped", "transformers"):  # as transformers groups by length: sorted within 50 batches
        stretch = 50 * size
        parts = [order[i : i + stretch] for i in range(0, len(order), stretch)]
        order = np.concatenate([part[np.argsort([-rows.lengths[i] for i in part])] for part in parts])
    return [order[i : i + size].tolist() for i in range(0, len(order), size)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32, help="texts a step; packed rows hold as many tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    texts = [str(row["text"]) for row in read_rows("data/text/sentiment.jsonl")]
    with tempfile.TemporaryDirectory() as scratch:
        bundle = louver.extend(MODEL, into=Path(scratch) / "b", max_length=ROOM, pattern="full")
        tokenizer = Tokenizer.open(bundle.path)
        corpus = Corpus.build(texts[: given.texts], tokenizer, Path(scratch), room=ROOM - tokenizer.specials)
        times: dict[str, list[float]] = {kind: [] for kind in ("packed", "grouped", "padded", "transformers")}
        losses: dict[str, float] = {}
        shares: dict[str, float] = {}
        held = np.arange(len(corpus) - 200, len(corpus))
        tokens = given.batch * (float(corpus.lengths.mean()) + tokenizer.specials)
        size = math.ceil(tokens / ROOM)  # packed rows of a step
        for turn in range(given.rounds):
            for kind, kept in times.items():
                torch.manual_seed(0)
                if kind == "transformers":
                    pupil: Any = AllWords(BertForMaskedLM.from_pretrained(MODEL, attn_implementation="sdpa")).train()
                else:
                    pupil = MaskedWords(masked_model(bundle, new_head=True)).train()
                rows = MaskedRows(
                    corpus,
                    np.arange(len(corpus) - 200),
                    tokenizer,
                    Masking(),
                    room=round(tokens / size) if kind == "packed" else ROOM,
                    seed=0,
                    packing=kind == "packed",
                    static=False,
                )
                join = collate_rows(tokenizer.pad_id, positions.offset(pupil.encoder.config))
                optimizer = torch.optim.AdamW(pupil.parameters(), lr=1e-4, fused=True)  # as the Trainer's
                real, every = 0, 0
                began = time.perf_counter()
                for members in batches(rows, kind, size if kind == "packed" else given.batch, turn):
                    batch = join([rows[i] for i in members])
                    if kind == "padded":  # to the longest text of all, as a fixed max_length does
                        batch = _wide(batch, 128, tokenizer.pad_id)
                    logits, truth = pupil(batch)
                    cross_entropy(logits, truth).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    real += int(batch["attention_mask"].sum())
                    every += batch["attention_mask"].numel()
                kept.append(time.perf_counter() - began)
                shares[kind] = 1 - real / every
                losses[kind] = _held_out(pupil, corpus, held, tokenizer, join)
                print(kind, f"{kept[-1]:.1f} s, padding {shares[kind]:.1%}, loss {losses[kind]:.3f}", flush=True)
    middle = {kind: median(kept) for kind, kept in times.items()}
    found: dict[str, Any] = {
        "batch": given.batch,
        "seconds": middle,
        "padding": shares,
        "loss": losses,
        "packed_over_grouped": middle["grouped"] / middle["packed"],
        "packed_over_padded": middle["padded"] / middle["packed"],
        "packed_over_transformers": middle["transformers"] / middle["packed"],
        "machine": describe(),
    }
    print(json.dumps({k: v for k, v in found.items() if k != "machine"}, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), "utf8")


def _wide(batch: dict[str, torch.Tensor], width: int, pad_id: int) -> dict[str, torch.Tensor]:
    fill = {"input_ids": pad_id, "attention_mask": 0, "asked": -100, "documents": -1, "position_ids": 0}
    missing = max(0, width - batch["input_ids"].shape[1])
    return {name: torch.nn.functional.pad(x, (0, missing), value=fill[name]) for name, x in batch.items()}


def _held_out(pupil: Any, corpus: Corpus, numbers: np.ndarray, tokenizer: Tokenizer, join: Any) -> float:
    rows = MaskedRows(corpus, numbers, tokenizer, Masking(), room=ROOM, seed=1, packing=False, static=True)
    pupil.eval()
    total, count = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(rows), 32):
            logits, truth = pupil(join([rows[i] for i in range(start, min(start + 32, len(rows)))]))
            total += float(cross_entropy(logits, truth, reduction="sum"))
            count += int((truth != IGNORED).sum())
    return total / count


if __name__ == "__main__":
    main()
