"""`MaskedWords`: an encoder with its masked-word head, which answers for the hidden tokens alone.

Logits of all tokens would be the largest tensor of a step by far (8,192 tokens of 30,522 words: 1 GB). The head of
every family works token by token, so it is given the states of the hidden ones only.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from louver.encoders.plug import base_of
from louver.tasks import Batch
from louver.text.masking import IGNORED
from louver.training.corpus import documents_of


class MaskedWords(nn.Module):
    """A masked language model.

    Args:
        encoder: a transformers model for masked words, with louver's attention under it.
    """

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Read a batch of `collate_rows`.

        Returns:
            Logits (hidden tokens, words), and the words that stood there.
        """
        hidden = batch["asked"] != IGNORED
        documents = documents_of(batch)
        kept = base_of(self.encoder).register_forward_hook(lambda _, __, found: _keep(found, hidden))
        try:
            found: Any = self.encoder(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                position_ids=batch["position_ids"],
                **({} if documents is None else {"documents": documents}),
            )
        finally:
            kept.remove()
        logits: Tensor = found.logits[0]
        return logits, batch["asked"][hidden]


def _keep(found: Any, hidden: Tensor) -> Any:
    """Leave the states of some tokens, as one row."""
    found.last_hidden_state = found.last_hidden_state[hidden][None]
    return found
