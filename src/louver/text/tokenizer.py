"""The one tokenizer path of training and serving, on the `tokenizers` library alone.

Ids equal those of transformers' fast tokenizers; a difference is on purpose: special tokens typed in a text (``[SEP]``)
are plain text, and whatever truncation or padding the file carries is off, so that nothing is cut unseen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers

from louver.errors import ModelError
from louver.text.truncation import Ids

FILE = "tokenizer.json"


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A text's ids, and the specials that go around them.

    Attributes:
        core: the `tokenizers` object.
        prefix: special ids before a text, as [CLS].
        suffix: special ids after it, as [SEP].
        pad_id: id of padding.
    """

    core: tokenizers.Tokenizer
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int

    @classmethod
    def open(cls, directory: str | Path) -> Tokenizer:
        """Read ``tokenizer.json`` of a model directory.

        Raises:
            ModelError: if the file is missing or unreadable.
        """
        file = Path(directory) / FILE
        if not file.is_file():
            raise ModelError(f"{directory} has no {FILE}; save it with transformers' AutoTokenizer first")
        try:
            core = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{file} cannot be read ({error}); save it again with transformers") from error
        core.no_truncation()
        core.no_padding()
        probe = core.encode("a", add_special_tokens=True)
        text = [i for i, special in enumerate(probe.special_tokens_mask) if not special]
        first, last = (text[0], text[-1]) if text else (len(probe.ids), len(probe.ids) - 1)
        core.encode_special_tokens = True
        return cls(core, tuple(probe.ids[:first]), tuple(probe.ids[last + 1 :]), _pad_id(core, Path(directory)))

    @property
    def specials(self) -> int:
        """Special tokens around one text."""
        return len(self.prefix) + len(self.suffix)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Turn texts into ids without specials; runs on all cores."""
        encodings = self.core.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int64) for encoding in encodings]

    def encode_after(self, prompt: str, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        """Turn each text behind a prompt into (ids of the prompt, ids of the text).

        Both are tokenized in one go, because a word may be another token at the start of a string than inside it.
        """
        if not prompt:
            return [(np.empty(0, np.int64), ids) for ids in self.encode(texts)]
        end = len(prompt.rstrip())  # the space before a word belongs to the word
        found = []
        for encoding in self.core.encode_batch([prompt + text for text in texts], add_special_tokens=False):
            ids = np.asarray(encoding.ids, np.int64)
            count = sum(start < end for start, _ in encoding.offsets)
            found.append((ids[:count], ids[count:]))
        return found

    def wrap(self, ids: Ids) -> Ids:
        """Put the specials around a text's ids."""
        return np.concatenate([np.asarray(self.prefix, np.int64), ids, np.asarray(self.suffix, np.int64)])


def _pad_id(core: tokenizers.Tokenizer, directory: Path) -> int:
    named = None
    config = directory / "tokenizer_config.json"
    if config.is_file():
        named = json.loads(config.read_text("utf8")).get("pad_token")
        named = named.get("content") if isinstance(named, dict) else named
    for token in (named, "[PAD]", "<pad>"):
        found = core.token_to_id(token) if isinstance(token, str) else None
        if found is not None:
            return int(found)
    return 0
