"""A masked-word head asked for words: masks in a text filled, and labels as words in a template.

Needs a bundle that `louver pretrain` made, or any whose files hold the head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
from torch import Tensor
from transformers import PreTrainedModel

from louver.bundle import Bundle
from louver.encoders.load import load_plain
from louver.encoders.plug import plug
from louver.encoders.pooling import LabelWords, Reader
from louver.errors import ModelError, OptionError, TextError
from louver.text import Ids, Tokenizer, Truncation, check, fit, rectangle
from louver.text.tokenizer import FILE

TEXT = "{text}"


class Guess(NamedTuple):
    """A word for a mask.

    Attributes:
        word: as the tokenizer writes it.
        chance: probability among all words.
    """

    word: str
    chance: float


def masked_model(bundle: Bundle, *, new_head: bool = False) -> PreTrainedModel:
    """Open a bundle's encoder with its masked-word head, the pattern under it.

    Args:
        bundle: with transformers files.
        new_head: let a head that is missing begin with random weights.

    Raises:
        ModelError: if the head is missing, or the encoder has a bottleneck adapter.
    """
    if bundle.card.bottleneck:
        raise ModelError(f"{bundle.path} has a bottleneck adapter, which no word head knows; give the bundle before it")
    if not new_head and not has_word_head(bundle):
        raise ModelError(f"{bundle.path} has no masked-word head; make one with 'louver pretrain'")
    model, _ = load_plain(bundle.path, architecture="AutoModelForMaskedLM", new_head=new_head)
    return plug(model, bundle.card.pattern, override=getattr(model.config, "louver_override", False))


def has_word_head(bundle: Bundle) -> bool:
    """Say whether a bundle's files hold a masked-word head."""
    config = bundle.path / "config.json"
    named = json.loads(config.read_text("utf8")).get("architectures") if config.is_file() else None
    return any(str(name).endswith(("ForMaskedLM", "ForPreTraining")) for name in named or ())


class Words:
    """Fills masks.

    Args:
        bundle: a bundle with a masked-word head, or its directory.
        model: its model, if it is open already.
    """

    def __init__(self, bundle: Bundle | str | Path, model: PreTrainedModel | None = None) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self.tokenizer = Tokenizer.open(self.bundle.path, template=False)
        self.vocabulary = self.tokenizer.vocabulary()
        self.model = masked_model(self.bundle) if model is None else model
        # the tokenizer of texts takes a typed mask for plain text; here it is the question
        self._core = tokenizers.Tokenizer.from_file(str(self.bundle.path / FILE))
        self._core.no_truncation()
        self._core.no_padding()
        self._mask = str(self._core.id_to_token(self.vocabulary.mask_id))

    @torch.inference_mode()
    def fill(self, texts: Sequence[str], *, top: int = 5) -> list[list[list[Guess]]]:
        """Guess the masked words of texts.

        Args:
            texts: with one or more masks, written as the tokenizer writes them ([MASK], <mask>).
            top: guesses for each mask.

        Returns:
            For each text, for each of its masks, the likeliest words.

        Raises:
            TextError: if a text has no mask, another special token, or is too long.
        """
        if top < 1:
            raise OptionError(f"top must be positive, got {top}; 5 is the default")
        if top > (most := self.tokenizer.core.get_vocab_size()):
            raise OptionError(f"the tokenizer has {most} words, got top={top}; give at most that")
        found = []
        for text in texts:
            ids = self.tokenizer.wrap(self._with_masks(check(text)))
            if len(ids) > self.bundle.card.max_length:
                raise TextError(
                    f"this model reads {self.bundle.card.max_length} tokens and the text has {len(ids)}; "
                    "shorten it, or extend the model"
                )
            logits = self._logits([ids])[0].float()
            chances = torch.softmax(logits, -1)
            guesses = []
            for place in np.flatnonzero(ids == self.vocabulary.mask_id):
                best = chances[int(place)].topk(top)
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                guesses.append([Guess(self._written(i), chance) for i, chance in pairs])
            found.append(guesses)
        return found

    def _written(self, number: int) -> str:
        return self._core.decode([number]).strip() or str(self._core.id_to_token(number))

    def _with_masks(self, text: str) -> Ids:
        """Tokenize a text whose masks are masks; other specials that are written in it are refused."""
        ids = np.asarray(self._core.encode(text, add_special_tokens=False).ids, np.int64)
        if self.vocabulary.mask_id not in ids:
            raise TextError(f"the text has no {self._mask}; write one where a word is to be found")
        others = [i for i in ids.tolist() if i in self.vocabulary.special_ids - {self.vocabulary.mask_id}]
        unknown = self._core.token_to_id("[UNK]"), self._core.token_to_id("<unk>")
        written = [i for i in others if i not in unknown]
        if written:
            raise TextError(f"the text has {self._core.id_to_token(written[0])} written in it; masks alone are read")
        return ids

    def _logits(self, rows: Sequence[Ids]) -> Tensor:
        ids, mask = (torch.from_numpy(x).to(self.model.device) for x in rectangle(rows, self.tokenizer.pad_id))
        found: Any = self.model(input_ids=ids, attention_mask=mask)
        logits: Tensor = found.logits
        return logits


@dataclass(frozen=True)
class Template:
    """A sentence with a hole, and the words that stand for labels in it (Schick & Schütze 2021, section 3).

    Attributes:
        pattern: such as ``{text} It was [MASK].``; ``{text}`` stands for the text, the mask for the word.
        words: for each label, words that say it; each one token.
    """

    pattern: str
    words: Mapping[str, Sequence[str]]


class Cloze:
    """Answers labels by the words that fill a template.

    Args:
        words: the model that fills it.
        template: pattern and words.

    Raises:
        OptionError: if the pattern lacks its text or its one mask, or a word is more than one token.
    """

    def __init__(self, words: Words, template: Template) -> None:
        self.words, self.template = words, template
        pattern = template.pattern
        if pattern.count(TEXT) != 1 or pattern.count(words._mask) != 1:
            raise OptionError(f"a template has {TEXT} and {words._mask} once each, got {pattern!r}")
        if len(template.words) < 2:
            raise OptionError("a template wants words for two labels or more, as good=great,fine")
        self.labels = tuple(sorted(template.words))
        before, after = pattern.split(TEXT)
        self.around = [
            np.asarray(words._core.encode(part, add_special_tokens=False).ids, np.int64) for part in (before, after)
        ]
        self.ids = [self._tokens(label) for label in self.labels]
        every = [number for ids in self.ids for number in ids]
        if len(set(every)) < len(every):
            raise OptionError("a word stands for two labels, or twice for one; give each label words of its own")

    def _tokens(self, label: str) -> list[int]:
        found = []
        for word in self.template.words[label]:
            # as it stands within a text: behind a space where words have spaces
            core = self.words._core
            written = [core.encode(f"{space}{word}", add_special_tokens=False).ids for space in (" ", "")]
            # the mark of a word's beginning is no part of a word in scripts without spaces
            bare = [ids[1:] if ids[:1] == [core.token_to_id("▁")] else ids for ids in written]
            one = [ids[0] for ids in bare if len(ids) == 1]
            if not one or one[0] in self.words.vocabulary.special_ids:
                raise OptionError(f"{word!r} is not one token of this model; take another word for {label!r}")
            found.append(one[0])
        if not found:
            raise OptionError(f"label {label!r} has no word; give it one")
        return found

    def rows(self, texts: Sequence[str], max_length: int | None = None) -> list[Ids]:
        """Put texts into the template; a text that is too long is cut at its end, the template never is."""
        tokenizer = self.words.tokenizer
        longest = max_length or self.words.bundle.card.max_length
        room = longest - tokenizer.specials - sum(map(len, self.around))
        if room < 1:
            raise OptionError(f"the template leaves no room for text in {longest} tokens; shorten it")
        found = []
        for ids in tokenizer.encode([check(text) for text in texts]):
            piece = fit(ids, room, Truncation.HEAD, max_length=longest).pieces[0]
            found.append(tokenizer.wrap(np.concatenate([self.around[0], piece, self.around[1]])))
        return found

    def reader(self) -> Reader:
        """Return a reader of the rows: (texts, labels), the mean logit of each label's words where the mask stands."""
        most = max(map(len, self.ids))
        ids = torch.tensor([one + [-1] * (most - len(one)) for one in self.ids])
        return Reader(self.words.model, "mask", words=LabelWords(self.words.vocabulary.mask_id, ids))

    @torch.inference_mode()
    def logits(self, texts: Sequence[str], *, batch: int = 16) -> np.ndarray:
        """Answer texts: (texts, labels), labels in the order of `labels`."""
        reader = self.reader().to(self.words.model.device).eval()
        rows, found, pad_id = self.rows(texts), [], self.words.tokenizer.pad_id
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            ids, mask = (torch.from_numpy(x).to(self.words.model.device) for x in rectangle(some, pad_id))
            found.append(reader(ids, mask).float().cpu().numpy())
        return np.concatenate(found)
