"""Loss by position before and after extension, on real text: python benchmarks/positions.py [--json FILE].

MiniLM-L3 has no masked-word head. With a new one, tied to its embeddings, it is trained on stretches of 512 tokens, as
many as a checkpoint reads. Then documents of 4,096 tokens, made of articles that it has not seen, are read in windows
of 512 (before extension) and whole, by every way to extend a position table; nothing is trained for that.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

from louver.encoders import positions
from louver.encoders.plug import plug
from louver.measure.machine import describe
from louver.measure.positions import loss_by_position

MODEL, ARTICLES, DOCUMENTS = Path("data/models/minilm-l3"), Path("data/text/bbc.jsonl"), "data/text/bbc-composite.jsonl"
WINDOW = "window(128) | global(1)"


def with_head() -> Any:
    """Return the checkpoint with a masked-word head that has not learned anything yet."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    return transformers.BertForMaskedLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def train(model: Any, stretches: Tensor, mask_id: int, specials: Sequence[int], epochs: int, batch: int = 8) -> None:
    """Train all weights to find the 15 % of the tokens that are hidden, other ones in every epoch."""
    torch.manual_seed(0)
    steps = epochs * (len(stretches) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=steps, pct_start=0.1)
    model.train()
    for step in range(steps):
        if step % (len(stretches) // batch) == 0:
            order = torch.randperm(len(stretches))
        ids = stretches[order[:batch]]
        order = order[batch:]
        hidden = (torch.rand(ids.shape) < 0.15) & ~torch.isin(ids, torch.tensor(specials))
        states = model.bert(ids.masked_fill(hidden, mask_id)).last_hidden_state[hidden]
        loss = cross_entropy(model.cls.predictions(states), ids[hidden])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            print(f"step {step} of {steps}, loss {loss.item():.3f}", flush=True)
    model.eval()


def lines_of(path: str | Path) -> list[str]:
    """Read the texts of a file."""
    return [json.loads(line)["text"] for line in Path(path).read_text("utf8").splitlines()]


def packed(texts: Sequence[str], tokenizer: Any, width: int) -> Tensor:
    """Join texts and cut them into stretches of so many tokens, specials included."""
    flat = [
        i for text in texts for i in [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
    ]
    inner = width - 2
    rows = [flat[start : start + inner] for start in range(0, len(flat) - inner, inner)]
    return torch.tensor([[tokenizer.cls_token_id, *row, tokenizer.sep_token_id] for row in rows])


def main() -> None:
    """Train, then print the loss of each way by position."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    tokenizer.model_max_length = 4096
    held_out = lines_of(DOCUMENTS)[-options.documents :]
    unseen = "".join(held_out)
    articles = [text for text in lines_of(ARTICLES) if text[:80] not in unseen]
    documents = [tokenizer(text, truncation=True, max_length=4096)["input_ids"] for text in held_out]
    trained = with_head()
    stretches = packed(articles, tokenizer, 512)
    print(f"{len(articles)} articles, {len(stretches)} stretches")
    train(trained, stretches, tokenizer.mask_token_id, tokenizer.all_special_ids, options.epochs)
    ways: list[tuple[str, str | None, str]] = [
        ("before: windows of 512", None, "full"),
        ("tile", "auto", WINDOW),
        ("tile", "auto", "full"),
        ("interpolate", "interpolate", WINDOW),
        ("sinusoidal", "sinusoidal", WINDOW),
    ]
    found = []
    for name, how, pattern in ways:
        model = copy.deepcopy(trained)
        if how is not None:
            positions.extend(model, 4096, how)
        plug(model, pattern)
        stretches = loss_by_position(
            model,
            documents,
            mask_id=tokenizer.mask_token_id,
            special_ids=tokenizer.all_special_ids,
            window=512 if how is None else None,
        )
        found.append({"positions": name, "pattern": pattern, "stretches": [asdict(s) for s in stretches]})
        print(name, pattern, [f"{s.start}: {s.loss:.3f}" for s in stretches], flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
