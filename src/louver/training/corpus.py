"""Texts for pretraining: tokenized once onto disk, read from there by need, masked and packed as they are asked for.

A corpus may be larger than memory: its ids lie in files that are mapped. Longer texts are cut into pieces that a model
reads, every token used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from louver.attention import Documents
from louver.errors import DataError, TextError
from louver.storage import storing
from louver.text import Ids, Tokenizer, check, rectangle
from louver.text.masking import IGNORED, Masking
from louver.text.packing import Pack, pack
from louver.text.tokenizer import Segment

_CHUNK = 1000
"""Texts that are tokenized at a time."""
_FEW = 1000
"""Pieces up to which those of other texts are listed, and not drawn until one is found."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Pieces of texts without specials.

    Attributes:
        ids: of all pieces, behind each other.
        words: number of the word that each token belongs to, rising within a piece.
        starts: where each piece starts, and the end of the last one.
        owners: number of the text that each piece is of, rising.
        texts: number of the first text with the same tokens, of each piece.
        unreadable: texts that were left out, empty ones among them.
    """

    ids: np.ndarray
    words: np.ndarray
    starts: np.ndarray
    owners: np.ndarray
    texts: np.ndarray
    unreadable: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def piece(self, number: int) -> tuple[Ids, Ids]:
        """Return a piece's ids and words."""
        here = slice(self.starts[number], self.starts[number + 1])
        return self.ids[here].astype(np.int64), self.words[here].astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each piece."""
        return np.diff(self.starts)

    @classmethod
    def build(
        cls,
        texts: Iterable[object],
        tokenizer: Tokenizer,
        directory: Path,
        *,
        room: int,
        segment: Segment | None = None,
    ) -> Corpus:
        """Tokenize texts into files, a thousand at a time.

        Args:
            texts: read once; those that are no text are left out and counted.
            tokenizer: of the model.
            directory: where the files lie; they must live as long as the corpus.
            room: tokens of a piece at most.
            segment: cuts texts into words; the tokenizer's own if None.

        Raises:
            DataError: if no text can be read.
            StorageError: if the disk is full.
        """
        stream, starts, unreadable = iter(texts), [0], 0
        owners: list[int] = []
        same: list[int] = []
        seen: dict[bytes, int] = {}
        read = 0
        with storing("the tokenized corpus"), ExitStack() as files:
            ids_file, words_file = (files.enter_context((directory / name).open("wb")) for name in ("ids", "words"))
            while chunk := list(islice(stream, _CHUNK)):
                readable = list(_readable(chunk))
                unreadable += len(chunk) - len(readable)
                for ids, words in tokenizer.encode_words(readable, segment):
                    first_of_these = seen.setdefault(blake2b(ids.tobytes(), digest_size=12).digest(), read)
                    read += 1
                    for first in range(0, len(ids), room):
                        ids_file.write(ids[first : first + room].astype(np.int32).tobytes())
                        words_file.write(words[first : first + room].astype(np.int32).tobytes())
                        starts.append(starts[-1] + len(ids[first : first + room]))
                        owners.append(read - 1)
                        same.append(first_of_these)
        if len(starts) == 1:
            raise DataError(f"none of {unreadable} texts can be read; a corpus needs at least one")
        mapped = [np.memmap(directory / name, np.int32, "r") for name in ("ids", "words")]
        return cls(mapped[0], mapped[1], np.asarray(starts), np.asarray(owners), np.asarray(same), unreadable)


def _readable(texts: Sequence[object]) -> Iterator[str]:
    for text in texts:
        try:
            yield check(text)
        except TextError:
            continue


class MaskedRows(Dataset[dict[str, Any]]):
    """A corpus as a masked language model reads it: rows of one or several pieces, some tokens hidden.

    Which ones depends on the seed, the piece and the epoch alone, so that a resumed run sees what it would have seen.

    Args:
        corpus: the pieces.
        numbers: of those that belong here.
        tokenizer: of the model.
        masking: what is hidden.
        room: tokens of a row, specials included.
        seed: of the masks.
        packing: put several pieces into a row.
        static: hide the same tokens in every epoch.
    """

    def __init__(
        self,
        corpus: Corpus,
        numbers: np.ndarray,
        tokenizer: Tokenizer,
        masking: Masking,
        *,
        room: int,
        seed: int,
        packing: bool,
        static: bool,
    ) -> None:
        self.corpus, self.numbers, self.tokenizer, self.masking = corpus, numbers, tokenizer, masking
        self.vocabulary = tokenizer.vocabulary()
        self.seed, self.static, self.epoch = seed, static, 0
        lengths = (corpus.lengths[numbers] + tokenizer.specials).tolist()
        self.rows = pack(lengths, room) if packing else [Pack((i,), (count,)) for i, count in enumerate(lengths)]
        self.lengths = [len(row) for row in self.rows]

    def set_epoch(self, epoch: int) -> None:
        """Draw masks anew; the Trainer calls it before every epoch."""
        self.epoch = 0 if self.static else epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, given, asked = self.rows[index], [], []
        for text in row.texts:
            number = int(self.numbers[text])
            draw = np.random.default_rng([self.seed, number, self.epoch])
            read, find = self.masking.hide(*self.corpus.piece(number), self.vocabulary, draw)
            given.append(self.tokenizer.wrap(read))
            before, after = (np.full(len(x), IGNORED) for x in (self.tokenizer.prefix, self.tokenizer.suffix))
            asked.append(np.concatenate([before, find, after]))
        return {
            "input_ids": np.concatenate(given),
            "asked": np.concatenate(asked),
            "documents": row.documents,
            "positions": row.positions,
        }


class PairedRows(MaskedRows):
    """Rows of two parts of a piece, half of them wrong: with the second part of another text, or in the other order.

    Args:
        rest: as `MaskedRows`.
        wrong: "next" or "order".
    """

    def __init__(self, *rest: Any, wrong: str, **options: Any) -> None:
        super().__init__(*rest, **{**options, "packing": False})
        self.wrong = wrong
        # a piece of one token has no two parts; the separator between them takes room too
        self.room = options["room"] - self.tokenizer.specials - len(self.tokenizer.middle)
        self.numbers = self.numbers[self.corpus.lengths[self.numbers] > 1]
        if wrong == "next" and len(set(self.corpus.owners[self.numbers].tolist())) < 2:
            raise DataError("parts of other texts are wanted, and there is one text; give more texts, or ask nothing")
        lengths = np.minimum(self.corpus.lengths[self.numbers], self.room)
        self.lengths = (lengths + options["room"] - self.room).tolist()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.numbers[index])
        draw = np.random.default_rng([self.seed, number, self.epoch])
        wrong = bool(draw.random() < 0.5)
        first, second = self._parts(number)
        if wrong and self.wrong == "next":
            second = self._parts(self._other(number, draw))[1]
        elif wrong:
            first, second = second, first
        left = self.room - len(first[0])  # a cut that waits for a word's end may leave less than a half
        second = second[0][:left], second[1][:left]
        hidden = [self.masking.hide(*part, self.vocabulary, draw) for part in (first, second)]
        wrapped = [
            self.tokenizer.wrap(hidden[0][0], hidden[1][0]),
            np.concatenate(
                [
                    np.full(len(self.tokenizer.prefix), IGNORED),
                    hidden[0][1],
                    np.full(len(self.tokenizer.middle), IGNORED),
                    hidden[1][1],
                    np.full(len(self.tokenizer.suffix), IGNORED),
                ]
            ),
        ]
        return {
            "input_ids": wrapped[0],
            "asked": wrapped[1],
            "documents": np.zeros(len(wrapped[0]), np.int64),
            "positions": np.arange(len(wrapped[0])),
            "wrong": np.int64(wrong),
        }

    def _other(self, number: int, draw: np.random.Generator) -> int:
        """Return a piece of another text; another part of the same one would be no wrong answer."""
        owners = self.corpus.owners
        others = self.numbers[owners[self.numbers] != owners[number]] if len(self.numbers) < _FEW else self.numbers
        while True:
            other = int(others[int(draw.integers(len(others)))])
            if owners[other] != owners[number]:
                return other

    def _parts(self, number: int) -> tuple[tuple[Ids, Ids], tuple[Ids, Ids]]:
        """Cut a piece in the middle, between two words where there are two."""
        ids, words = (x[: self.room] for x in self.corpus.piece(number))
        cut = len(ids) // 2
        while cut < len(ids) - 1 and words[cut] == words[cut - 1]:
            cut += 1
        return (ids[:cut], words[:cut]), (ids[cut:], words[cut:])


Collator = Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]


def collate_rows(pad_id: int, offset: int) -> Collator:
    """Return a collator of rows; padding is a document of its own.

    Args:
        pad_id: id of padding.
        offset: of a model's first position.
    """

    def join(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids, mask = rectangle([row["input_ids"] for row in rows], pad_id)
        asked, _ = rectangle([row["asked"] for row in rows], IGNORED, ids.shape[1])
        documents, _ = rectangle([row["documents"] for row in rows], -1, ids.shape[1])
        places, _ = rectangle([row["positions"] for row in rows], 0, ids.shape[1])
        found = {"input_ids": ids, "attention_mask": mask, "asked": asked, "documents": documents}
        batch = {name: torch.from_numpy(x) for name, x in found.items()}
        batch["position_ids"] = torch.from_numpy(places + offset)
        if "wrong" in rows[0]:
            batch["wrong"] = torch.as_tensor(np.stack([row["wrong"] for row in rows]))
        return batch

    return join


def documents_of(batch: dict[str, Tensor]) -> Documents | None:
    """Read a batch's document numbers; None where every row is one text."""
    numbers = batch["documents"]
    return None if bool((numbers <= 0).all()) else Documents.read(numbers, *numbers.shape)
