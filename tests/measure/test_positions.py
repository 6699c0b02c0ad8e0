from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from louver.errors import DataError, OptionError
from louver.measure.positions import Stretch, loss_by_position

WORDS, MASK = 10, 9


class Forgetful(nn.Module):
    """Knows every hidden word of a counting text up to a position, and guesses evenly from there on."""

    device = torch.device("cpu")

    def __init__(self, knows: int) -> None:
        super().__init__()
        self.knows = knows
        self.lengths: list[int] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        tokens = input_ids.shape[1]
        self.lengths.append(tokens)
        place = torch.arange(tokens)
        logits = 1e3 * nn.functional.one_hot(place % 7, WORDS).float()
        logits[self.knows :] = 0.0
        return SimpleNamespace(logits=logits[None])


def texts(count: int, tokens: int) -> list[list[int]]:
    return [[t % 7 for t in range(tokens)] for _ in range(count)]


def measured(model: Forgetful, *arguments: Any, **options: Any) -> list[Stretch]:
    return loss_by_position(cast(PreTrainedModel, model), *arguments, **options)


def test_loss_stands_where_the_token_stands() -> None:
    found = measured(Forgetful(100), texts(5, 230), mask_id=MASK, width=50)
    assert [(s.start, s.stop) for s in found] == [(0, 50), (50, 100), (100, 150), (150, 200), (200, 250)]
    assert [round(s.loss, 4) for s in found] == [0.0, 0.0, 2.3026, 2.3026, 2.3026]  # ln 10
    assert all(s.low <= s.loss + 1e-6 and s.loss <= s.high + 1e-6 and s.n > 0 for s in found)
    assert 0.1 < sum(s.n for s in found) / (5 * 230) < 0.2


def test_windows_are_read_by_themselves() -> None:
    model = Forgetful(70)
    found = measured(model, texts(3, 210), mask_id=MASK, width=70, window=70)
    assert [round(s.loss, 4) for s in found] == [0.0, 0.0, 0.0]
    assert set(model.lengths) == {70}


def test_specials_are_never_hidden_and_draws_do_not_depend_on_the_model() -> None:
    special = [[0] * 100, [t % 7 for t in range(100)]]
    found = measured(Forgetful(0), special, mask_id=MASK, special_ids=[0], share=0.9)
    again = measured(Forgetful(50), special, mask_id=MASK, special_ids=[0], share=0.9)
    assert found[0].n == again[0].n <= 100 - 15
    with pytest.raises(DataError, match="no text has a token to hide"):
        measured(Forgetful(0), [[0, 0]], mask_id=MASK, special_ids=[0])
    with pytest.raises(DataError, match="no text has a token to hide"):
        measured(Forgetful(0), [], mask_id=MASK)
    with pytest.raises(OptionError, match=r"must be positive and share within 0…1, got 0, None and 0\.15"):
        measured(Forgetful(0), special, mask_id=MASK, width=0)
