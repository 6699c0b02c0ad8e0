"""Which tokens of packed sequences belong together.

Shape letters: B batch, T tokens; N documents of a group, X tokens of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from louver.attention.padding import Padding
from louver.errors import OptionError


@dataclass(frozen=True, eq=False)
class Group:
    """Documents of similar length, as rows.

    Attributes:
        index_NT: where each token stands, counted over all rows behind each other; padding repeats the first.
        padding: which tokens are real.
    """

    index_NT: Tensor
    padding: Padding


@dataclass(frozen=True, eq=False)
class Documents:
    """Checked document numbers. They live as long as one forward pass, and keep what every layer of that pass needs.

    Attributes:
        numbers_BT: int64, the document of each token; the tokens of a document stand together.
    """

    numbers_BT: Tensor
    kept: dict[Padding | None, list[Group]] = field(default_factory=dict)

    @classmethod
    def read(cls, numbers_BT: Tensor, batch: int, length: int, padding: Padding | None = None) -> Documents:
        """Check document numbers.

        Args:
            numbers_BT: (batch, length) int64; those of padding are not looked at.
            batch: rows expected.
            length: tokens expected.
            padding: which tokens are real; None for all.

        Raises:
            OptionError: if they are of another type or shape, or a document comes in several stretches.
        """
        if numbers_BT.dtype is not torch.int64 or tuple(numbers_BT.shape) != (batch, length):
            raise OptionError(
                f"documents must be torch.int64 (batch, tokens) = ({batch}, {length}), "
                f"got {numbers_BT.dtype} {tuple(numbers_BT.shape)}"
            )
        if padding is not None:
            numbers_BT = numbers_BT.masked_fill(~padding.mask_BT, torch.iinfo(torch.int64).min)
        for row, numbers in enumerate(numbers_BT):
            stretches = torch.unique_consecutive(numbers)
            if len(stretches) != len(torch.unique(stretches)):
                raise OptionError(f"a document of row {row} comes in several stretches; its tokens must stand together")
        return cls(numbers_BT)

    def places(self) -> Tensor:
        """Return each token's position in its own document, (B, T)."""
        numbers_BT = self.numbers_BT
        index_T = torch.arange(numbers_BT.shape[1], device=numbers_BT.device)
        new_BT = torch.ones_like(numbers_BT, dtype=torch.bool)
        new_BT[:, 1:] = numbers_BT[:, 1:] != numbers_BT[:, :-1]
        starts_BT = torch.where(new_BT, index_T, 0).cummax(1).values
        return index_T - starts_BT

    def lengths(self) -> Tensor:
        """Return the tokens of each token's document, (B, T)."""
        same_BTT = self.numbers_BT[:, :, None] == self.numbers_BT[:, None, :]
        return same_BTT.sum(-1)

    def groups(self, padding: Padding | None) -> list[Group]:
        """Return all documents as rows, grouped so that none is padded to more than twice its length."""
        if padding not in self.kept:
            spans: dict[int, list[tuple[int, int]]] = {}
            for start, stop in self._spans(padding):
                spans.setdefault((stop - start).bit_length(), []).append((start, stop))
            self.kept[padding] = [self._group(found) for found in spans.values()]
        return self.kept[padding]

    def _group(self, spans: list[tuple[int, int]]) -> Group:
        device = self.numbers_BT.device
        starts_N = torch.tensor([start for start, _ in spans], device=device)
        lengths_N = torch.tensor([stop - start for start, stop in spans], device=device)
        padding = Padding.of_lengths(lengths_N, max(stop - start for start, stop in spans))
        within_T = torch.arange(padding.mask_BT.shape[1], device=device)
        return Group(torch.where(padding.mask_BT, starts_N[:, None] + within_T, starts_N[:, None]), padding)

    def _spans(self, padding: Padding | None) -> list[tuple[int, int]]:
        """Return where each document starts and stops, counted over all rows behind each other; padding has none."""
        batch, tokens = self.numbers_BT.shape
        found: list[tuple[int, int]] = []
        for row in range(batch):
            first, last = (0, tokens) if padding is None else padding.span(row)
            place = row * tokens + first
            for count in torch.unique_consecutive(self.numbers_BT[row, first:last], return_counts=True)[1].tolist():
                found.append((place, place + count))
                place += count
        return found
