"""`MaskedWords`: an encoder with its masked-word head, which answers for the hidden tokens alone.

Logits of all tokens would be the largest tensor of a step by far (8,192 tokens of 30,522 words: 1 GB). The head of
every family works token by token, so it is given the states of the hidden ones only.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from louver.encoders.plug import base_of
from louver.encoders.pooling import segments
from louver.tasks import Batch
from louver.text.masking import IGNORED
from louver.training.corpus import documents_of


class MaskedWords(nn.Module):
    """A masked language model.

    Args:
        encoder: a transformers model for masked words, with louver's attention under it.
        separator: of pairs, the id after which segment 1 begins; None if the encoder tells no segments apart.
    """

    def __init__(self, encoder: PreTrainedModel, separator: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.separator = separator

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Read a batch of `collate_rows`.

        Returns:
            Logits (hidden tokens, words), and the words that stood there.
        """
        logits, truth, _ = self.with_first(batch)
        return logits, truth

    def with_first(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Read a batch and return the state of each row's first token too, (rows, width)."""
        hidden = batch["asked"] != IGNORED
        documents = documents_of(batch)
        first: list[Tensor] = []

        def keep(_: nn.Module, __: Any, found: Any) -> Any:
            """Leave the states of the hidden tokens, as one row."""
            first.append(found.last_hidden_state[:, 0])
            found.last_hidden_state = found.last_hidden_state[hidden][None]
            return found

        extra: dict[str, Any] = {} if documents is None else {"documents": documents}
        if "wrong" in batch and self.separator is not None:
            extra["token_type_ids"] = segments(batch["input_ids"], batch["attention_mask"], self.separator)
        hook = base_of(self.encoder).register_forward_hook(keep)
        try:
            found: Any = self.encoder(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                position_ids=batch["position_ids"],
                **extra,
            )
        finally:
            hook.remove()
        logits: Tensor = found.logits[0]
        return logits, batch["asked"][hidden], first[0]
