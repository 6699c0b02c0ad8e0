"""Which tokens of a batch are real.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from louver.errors import OptionError

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Padding:
    """A checked padding mask. It lives as long as one forward pass, and keeps what every layer of that pass needs.

    Attributes:
        mask_BT: True = real token.
        lengths_B: real tokens of each row.
        starts_B: index of each row's first real token; 0 under right padding.
        left: whether any row begins with padding.
        whole: whether every token of the batch is real, so that no mask is needed.
    """

    mask_BT: Tensor
    lengths_B: Tensor
    starts_B: Tensor
    left: bool
    whole: bool
    kept: dict[Any, Any] = field(default_factory=dict)

    def keep(self, key: Any, make: Callable[[], Made]) -> Made:
        """Return what `make` gave for this key in an earlier layer, or make it now."""
        if key not in self.kept:
            self.kept[key] = make()
        found: Made = self.kept[key]
        return found

    @classmethod
    def read(cls, mask_BT: Tensor, batch: int, length: int) -> Padding:
        """Check a padding mask and measure it; reads the values once.

        Args:
            mask_BT: (batch, length) bool, True = real token.
            batch: rows expected.
            length: tokens expected.

        Raises:
            OptionError: if the mask is not boolean, of another shape, or has holes.
        """
        if mask_BT.dtype is not torch.bool:
            raise OptionError(
                f"padding must be bool with True = real token, got {mask_BT.dtype}; "
                "convert it with louver.attention.from_zero_one or from_additive"
            )
        if tuple(mask_BT.shape) != (batch, length):
            raise OptionError(
                f"padding must have shape (batch, tokens) = ({batch}, {length}), got {tuple(mask_BT.shape)}"
            )
        lengths_B = mask_BT.sum(1)
        if torch.compiler.is_exporting():  # values are unknown while tracing; exported graphs take right padding
            return cls(mask_BT, lengths_B, torch.zeros_like(lengths_B), left=False, whole=False)
        starts_B = mask_BT.int().argmax(1)
        index_T = torch.arange(length, device=mask_BT.device)
        straight_BT = (index_T >= starts_B[:, None]) & (index_T < (starts_B + lengths_B)[:, None])
        if not torch.equal(straight_BT, mask_BT):
            row = int((straight_BT != mask_BT).any(1).int().argmax())
            raise OptionError(
                f"padding mask has a hole in row {row}; real tokens must be one run, with padding left or right of it"
            )
        return cls(mask_BT, lengths_B, starts_B, bool((starts_B > 0).any()), bool((lengths_B == length).all()))

    @classmethod
    def of_lengths(cls, lengths_B: Tensor, length: int) -> Padding:
        """Return right padding of rows with so many real tokens each."""
        mask_BT = torch.arange(length, device=lengths_B.device) < lengths_B[:, None]
        whole = bool((lengths_B == length).all())
        return cls(mask_BT, lengths_B, torch.zeros_like(lengths_B), left=False, whole=whole)

    def span(self, row: int) -> tuple[int, int]:
        """Return where a row's real tokens start and stop."""
        start = int(self.starts_B[row])
        return start, start + int(self.lengths_B[row])

    def aligned(self) -> Padding:
        """Return the same lengths as right padding."""
        return self.keep("aligned", self._aligned)

    def _aligned(self) -> Padding:
        return Padding.of_lengths(self.lengths_B, self.mask_BT.shape[1])

    def rows(self, index: list[int], length: int) -> Padding:
        """Return some rows, cut to `length` tokens; only for right padding.

        Args:
            index: row numbers.
            length: tokens to keep; at least the longest chosen row.
        """
        return self.keep((tuple(index), length), lambda: self._rows(index, length))

    def _rows(self, index: list[int], length: int) -> Padding:
        mask_BT = self.mask_BT[index, :length]
        lengths_B = self.lengths_B[index]
        whole = bool((lengths_B == length).all())
        return Padding(mask_BT, lengths_B, self.starts_B[index], left=False, whole=whole)

    def to_front(self, x_BHTD: Tensor) -> Tensor:
        """Move each row's real tokens to the front."""
        return _shift(x_BHTD, self.starts_B)

    def to_place(self, x_BHTD: Tensor) -> Tensor:
        """Undo `to_front`."""
        return _shift(x_BHTD, -self.starts_B)


def _shift(x_BHTD: Tensor, by_B: Tensor) -> Tensor:
    tokens = x_BHTD.shape[2]
    index_BT = (torch.arange(tokens, device=x_BHTD.device) + by_B[:, None]) % tokens
    return x_BHTD.gather(2, index_BT[:, None, :, None].expand_as(x_BHTD))
