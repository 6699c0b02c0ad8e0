"""The one tokenizer path of training and serving, on the `tokenizers` library alone.

Ids equal those of transformers' fast tokenizers; a difference is on purpose: special tokens typed in a text (``[SEP]``)
are plain text, and whatever truncation or padding the file carries is off, so that nothing is cut unseen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from louver.errors import ModelError, OptionError
from louver.text.hygiene import clean
from louver.text.masking import Vocabulary
from louver.text.scripts import is_ideograph
from louver.text.truncation import Ids

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
CLEANING = "louver_cleaning"
"""Key of `CONFIG` with what is done to every text before it is tokenized."""
SOFT_PROMPT = "louver_soft_prompt"
"""Key of `CONFIG` with the ids of trained vectors that stand behind the first special of every text."""
TEMPLATE = "louver_template"
"""Key of `CONFIG` with the ids before and after every text: a sentence with a mask that is to be filled."""
Segment = Callable[[str], Sequence[str]]


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A text's ids, and the specials that go around them.

    Attributes:
        core: the `tokenizers` object.
        prefix: special ids before a text, as [CLS]; and those of a soft prompt.
        suffix: special ids after it, as [SEP].
        pad_id: id of padding.
        mask_id: id that hides a token, or None.
        middle: special ids between two texts.
        prompted: whether a soft prompt is part of `prefix`.
        cleaning: what is done to every text first, one of `CLEANINGS`.
        separator: the id after which a model wants segment 1 of a pair (BERT's [SEP]); None where it knows none.
    """

    core: tokenizers.Tokenizer
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int
    mask_id: int | None = None
    middle: tuple[int, ...] = ()
    separator: int | None = None
    cleaning: str = "none"
    prompted: bool = False

    @classmethod
    def open(cls, directory: str | Path, *, template: bool = True) -> Tokenizer:
        """Read ``tokenizer.json`` of a model directory.

        Args:
            directory: of the model.
            template: put the ids of a template, where the directory names one, around every text.

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
        prefix, suffix = _around(core.encode("a", add_special_tokens=True))
        middle, separator = _between(core.encode("a", "a", add_special_tokens=True))
        core.encode_special_tokens = True
        directory = Path(directory)
        mask_id = _named(core, directory, "mask_token", "[MASK]", "<mask>")
        config = _config(directory)
        prompt = tuple(config.get(SOFT_PROMPT, ()))
        if template and TEMPLATE in config:
            before, after = config[TEMPLATE]
            prefix, suffix = prefix + tuple(before), tuple(after) + suffix
        pad_id, cleaning = _pad_id(core, directory), config.get(CLEANING, "none")
        return cls(core, prefix + prompt, suffix, pad_id, mask_id, middle, separator, cleaning, bool(prompt))

    @property
    def specials(self) -> int:
        """Special tokens around one text; a pair has `middle` too."""
        return len(self.prefix) + len(self.suffix)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Turn texts into ids without specials; runs on all cores."""
        encodings = self.core.encode_batch_fast(self._cleaned(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int64) for encoding in encodings]

    def encode_after(
        self, prompt: str, texts: Sequence[str], *, offsets: bool = False
    ) -> list[tuple[Ids, Ids, np.ndarray | None]]:
        """Turn each text behind a prompt into (ids of the prompt, ids of the text, characters of the text).

        Both are tokenized in one go, because a word may be another token at the start of a string than inside it.

        Args:
            prompt: put before every text; may be empty.
            texts: any.
            offsets: also say which characters each token of the text stands for, (tokens, 2); otherwise None.
        """
        if not prompt and not offsets:
            return [(np.empty(0, np.int64), ids, None) for ids in self.encode(texts)]
        end = len(prompt.rstrip())  # the space before a word belongs to the word
        found = []
        whole = [prompt + text for text in self._cleaned(texts)]
        for encoding in self.core.encode_batch(whole, add_special_tokens=False):
            ids = np.asarray(encoding.ids, np.int64)
            places = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
            count = int((places[:, 0] < end).sum())
            characters = np.maximum(places[count:] - len(prompt), 0) if offsets else None
            found.append((ids[:count], ids[count:], characters))
        return found

    def encode_words(self, texts: Sequence[str], segment: Segment | None = None) -> list[tuple[Ids, Ids]]:
        """Turn texts into (ids, number of the word that each token belongs to).

        Args:
            texts: any.
            segment: cuts a text into words that give the text again when they are joined, as ``jieba.lcut`` does; None
                takes the tokenizer's own words, and each token by itself in Chinese and Japanese.

        Raises:
            OptionError: if the words of `segment` do not give the text again.
        """
        found = []
        texts = self._cleaned(texts)
        for text, encoding in zip(texts, self.core.encode_batch(texts, add_special_tokens=False), strict=True):
            if segment is None:
                words = _own_words(text, encoding)
            else:
                pieces = list(segment(text))
                if "".join(pieces) != text:
                    raise OptionError("the words of a segmenter must give the text again when they are joined")
                owner = [number for number, piece in enumerate(pieces) for _ in piece]
                words = [owner[start] for start, _ in encoding.offsets]
            found.append((np.asarray(encoding.ids, np.int64), np.asarray(words, np.int64)))
        return found

    def _cleaned(self, texts: Sequence[str]) -> list[str]:
        return list(texts) if self.cleaning == "none" else [clean(text, self.cleaning) for text in texts]

    def vocabulary(self) -> Vocabulary:
        """Return what masking needs to know.

        Raises:
            ModelError: if the tokenizer has no mask token.
        """
        if self.mask_id is None:
            raise ModelError("the tokenizer has no mask token; a masked language model needs one, [MASK] or <mask>")
        special = {number for number, token in self.core.get_added_tokens_decoder().items() if token.special}
        return Vocabulary(self.mask_id, frozenset(special), self.core.get_vocab_size())

    def wrap(self, ids: Ids, second: Ids | None = None) -> Ids:
        """Put the specials around a text's ids, or around and between those of two texts."""
        parts: list[Any] = [self.prefix, ids, self.suffix]
        if second is not None:
            parts = [self.prefix, ids, self.middle, second, self.suffix]
        return np.concatenate([np.asarray(part, np.int64) for part in parts])


def _own_words(text: str, encoding: tokenizers.Encoding) -> list[int]:
    """Number a tokenizer's own words. Some take a stretch of ideographs for one: there, each token is a word."""
    numbers: list[int] = []
    before: tuple[int | None, int, int] = (None, 0, 0)
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        same = word is not None and word == before[0]
        if same and (start, end) != before[1:]:  # bytes of one character stay together
            beside = text[max(start - 1, 0) : start + 1]
            same = not any(map(is_ideograph, beside))
        numbers.append((numbers[-1] if numbers else -1) + (not same))
        before = (word, start, end)
    return numbers


def _around(probe: tokenizers.Encoding) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special ids before and after a text."""
    text = [i for i, special in enumerate(probe.special_tokens_mask) if not special]
    first, last = (text[0], text[-1]) if text else (len(probe.ids), len(probe.ids) - 1)
    return tuple(probe.ids[:first]), tuple(probe.ids[last + 1 :])


def _between(probe: tokenizers.Encoding) -> tuple[tuple[int, ...], int | None]:
    """Return the special ids between two texts, and the one that ends segment 0 if there are segments."""
    of_first = [i for i, owner in enumerate(probe.sequence_ids) if owner == 0]
    of_second = [i for i, owner in enumerate(probe.sequence_ids) if owner == 1]
    if not of_first or not of_second:
        return (), None
    middle = tuple(probe.ids[of_first[-1] + 1 : of_second[0]])
    return middle, middle[-1] if middle and probe.type_ids[of_second[0]] == 1 else None


def _pad_id(core: tokenizers.Tokenizer, directory: Path) -> int:
    return _named(core, directory, "pad_token", "[PAD]", "<pad>") or 0


def _named(core: tokenizers.Tokenizer, directory: Path, name: str, *usual: str) -> int | None:
    """Return the id of a special token: as the config beside the tokenizer names it, or by its usual names."""
    named = _config(directory).get(name)
    named = named.get("content") if isinstance(named, dict) else named
    for token in (named, *usual):
        found = core.token_to_id(token) if isinstance(token, str) else None
        if found is not None:
            return int(found)
    return None


def write_setting(directory: Path, key: str, value: Any) -> None:
    """Keep something of louver's own beside a tokenizer: `CLEANING`, `SOFT_PROMPT` or `TEMPLATE`."""
    written = json.dumps({**_config(directory), key: value}, indent=1, ensure_ascii=False)
    (directory / CONFIG).write_text(written, "utf8")


def _config(directory: Path) -> dict[str, Any]:
    """Read what stands beside a tokenizer, if anything does."""
    file = directory / CONFIG
    found: dict[str, Any] = json.loads(file.read_text("utf8")) if file.is_file() else {}
    return found
