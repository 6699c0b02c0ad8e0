"""The work that every peer gets: real English texts, cut to lengths drawn from a log-normal distribution.

    python benchmarks/peers/work.py work.jsonl --count 1000
    python benchmarks/peers/work.py long.jsonl --count 200 --mean 900 --most 4096

Lengths are in tokens of MiniLM's tokenizer, specials included; the same seed gives the same file.
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import cycle
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from louver.text.rows import read_rows

SIGMA = 0.7
"""Of the logarithm: half of the texts lie between 0.62 and 1.6 times the middle one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--mean", type=float, default=128)
    parser.add_argument("--most", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    tokenizer = Tokenizer.from_file("data/models/minilm-l6/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    wanted = rng.lognormal(math.log(given.mean) - SIGMA**2 / 2, SIGMA, given.count)
    source = cycle(row for row in read_rows("data/text/bbc.jsonl"))
    lengths = []
    with given.into.open("w", encoding="utf8") as stream:
        for tokens in np.clip(wanted.round().astype(int), 4, given.most):
            text, found = str(next(source)["text"]), None
            while found is None or len(found.ids) < tokens:
                text = text if found is None else f"{text} {next(source)['text']}"
                found = tokenizer.encode(text)
            words = [end for (_, end), word in zip(found.offsets, found.word_ids, strict=True) if word is not None]
            cut = text[: words[tokens - 3]]
            lengths.append(len(tokenizer.encode(cut).ids))
            stream.write(json.dumps({"text": cut}, ensure_ascii=False) + "\n")
    print(f"{len(lengths)} texts, {sum(lengths)} tokens, mean {np.mean(lengths):.0f}, most {max(lengths)}")


if __name__ == "__main__":
    main()
