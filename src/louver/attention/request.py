"""What every attention backend is asked: one contract, checked before any backend sees it.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from louver.attention.documents import Documents
from louver.attention.padding import Padding
from louver.patterns import Pattern


@dataclass(frozen=True, eq=False)
class Request:
    """One attention call with a plain pattern and right padding.

    Attributes:
        q_BHTD: queries.
        k_BHSD: keys.
        v_BHSD: values.
        pattern: who may attend to whom, without schedules.
        scale: factor on the products, usually D ** -0.5.
        dropout: probability that a weight is dropped; 0 outside training.
        padding: which tokens are real, right padded; None if all are.
        mask_BHTS: bool (B|1, H|1, T|1, S), True = may attend, or None.
        documents: of packed sequences, or None.
        global_BT: True for extra global tokens, or None.
        return_weights: whether the weights are wanted too.
        weights_of: heads whose weights are wanted; None for all.
    """

    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    pattern: Pattern
    scale: float
    dropout: float = 0.0
    padding: Padding | None = None
    mask_BHTS: Tensor | None = None
    documents: Documents | None = None
    global_BT: Tensor | None = None
    return_weights: bool = False
    weights_of: tuple[int, ...] | None = None

    @property
    def lengths_B(self) -> Tensor | None:
        """Real tokens of each row, or None if all are real."""
        return None if self.padding is None else self.padding.lengths_B


@dataclass(frozen=True)
class Backend:
    """A way to compute attention, and what it can do.

    Attributes:
        compute: the function; rows of padding may hold anything, `attend` clears them.
        any_mask: takes `mask_BHTS` and queries and keys of different lengths.
        documents: takes `documents` and `global_BT` as they are; for the others `attend` splits the batch.
        weights: can return the weights.
        refusal: says what else it cannot do, in words that go on from its name; None if it can.
    """

    compute: Callable[[Request], tuple[Tensor, Tensor | None]]
    any_mask: bool
    documents: bool
    weights: bool
    refusal: Callable[[Request], str | None] = lambda _: None
