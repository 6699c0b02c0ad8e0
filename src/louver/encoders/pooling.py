"""From token states to one vector, and from a bundle to a module that gives the outputs of its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from louver.bundle import Bundle, Card
from louver.encoders.adapters import add_bottlenecks
from louver.encoders.load import load, load_plain, quiet
from louver.encoders.plug import base_of, plug
from louver.errors import BundleError, OptionError, unknown
from louver.patterns import Pattern
from louver.text import Tokenizer

HEAD = "head.safetensors"
Pooling = Literal["cls", "mean", "own", "none", "mask"]


def pool(states: Tensor, mask: Tensor, how: str) -> Tensor:
    """Pool token states.

    Args:
        states: (batch, tokens, width).
        mask: (batch, tokens), nonzero = real token; right padded.
        how: "cls" (the first token), "mean" (over the real tokens), or "none" (the states as they are).

    Raises:
        OptionError: if `how` is unknown.
    """
    if how == "cls":
        return states[:, 0]
    if how == "mean":
        weights = mask.to(states.dtype)[:, :, None]
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)
    if how == "none":
        return states
    raise OptionError(unknown("pooling", how, ["cls", "mean", "none"]))


class LabelWords(NamedTuple):
    """Words that stand for labels in a template.

    Attributes:
        mask_id: id of the mask that they fill.
        ids: (labels, words), -1 where a label has fewer.
    """

    mask_id: int
    ids: Tensor


class Reader(nn.Module):
    """An encoder, its pooling and a linear head: ids in, one vector a text out, or one a token.

    Args:
        encoder: a transformers encoder; with pooling "own", a transformers model that gives logits; with "mask", one
            that has a masked-word head.
        pooling: "cls", "mean", "own", "none" for a head on every token, or "mask" for the words that fill a template.
        outputs: numbers a text, or a token; 0 for the pooled vector itself.
        dropout: probability before the head while training; what the checkpoint says of heads, or of states, if None.
        separator: of pairs, the id after which segment 1 begins; None if the encoder tells no segments apart.
        words: with pooling "mask", the id of the mask in front of (labels, words) ids, -1 where a label has fewer.
    """

    def __init__(
        self,
        encoder: PreTrainedModel,
        pooling: Pooling,
        outputs: int = 0,
        dropout: float | None = None,
        separator: int | None = None,
        words: LabelWords | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.separator = separator
        self.dropout = nn.Dropout(_dropout_of(encoder) if dropout is None else dropout)
        self.head = nn.Linear(encoder.config.hidden_size, outputs) if outputs else None
        self.mask_id = -1 if words is None else words.mask_id
        self.register_buffer("words", None if words is None else words.ids, persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Read a batch.

        Args:
            input_ids: (batch, tokens) int64.
            attention_mask: (batch, tokens), 1 = real token.

        Returns:
            (batch, outputs) logits, or (batch, width) embeddings of length one; with pooling "none" (batch, tokens,
            outputs).
        """
        if self.pooling == "mask":
            return self._filled(input_ids, attention_mask)
        found: Any = self.encoder(**self._inputs(input_ids, attention_mask))
        if self.pooling == "own":
            logits: Tensor = found.logits
            return logits
        return self._answer(found.last_hidden_state, attention_mask)

    def with_states(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Read a batch and return the token states of every layer too, those of the embeddings first."""
        found: Any = self.encoder(**self._inputs(input_ids, attention_mask), output_hidden_states=True)
        if self.pooling == "own":
            return found.logits, found.hidden_states
        return self._answer(found.last_hidden_state, attention_mask), found.hidden_states

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Read a batch and return the vectors (batch, width) that the head would get."""
        states: Tensor = self.encoder(**self._inputs(input_ids, attention_mask)).last_hidden_state
        return pool(states, attention_mask, self.pooling)

    def _inputs(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Return what the encoder is given; segments are read off the ids, so that nothing else has to carry them."""
        found = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.separator is not None:
            found["token_type_ids"] = segments(input_ids, attention_mask, self.separator)
        return found

    def _answer(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        pooled = pool(states, attention_mask, self.pooling)
        if self.head is None:
            return nn.functional.normalize(pooled, dim=-1)
        result: Tensor = self.head(self.dropout(pooled))
        return result

    def _filled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the mean logit of each label's words where the mask stands, which each text has once."""
        hidden = (input_ids == self.mask_id)[:, :, None]

        def keep(_: nn.Module, __: Any, found: Any) -> Any:
            """Leave the state at the mask, so that the head of words reads one token and not all."""
            found.last_hidden_state = (found.last_hidden_state * hidden).sum(1, keepdim=True)
            return found

        hook = base_of(self.encoder).register_forward_hook(keep)
        try:
            logits = self.encoder(**self._inputs(input_ids, attention_mask)).logits[:, 0]
        finally:
            hook.remove()
        words = self.get_buffer("words")
        there = (words >= 0).to(logits.dtype)
        found: Tensor = (logits[:, words.clamp(min=0)] * there).sum(-1) / there.sum(-1)
        return found

    def save(self, directory: Path) -> None:
        """Write the encoder as transformers files, and the head beside them."""
        with quiet():
            self.encoder.save_pretrained(directory)
        if self.pooling == "mask":
            words = torch.tensor([self.mask_id]), self.get_buffer("words").cpu()
            save_file(dict(zip(("mask", "words"), words, strict=True)), directory / HEAD)
        if self.head is not None:
            save_file({k: v.contiguous() for k, v in self.head.state_dict().items()}, directory / HEAD)


def segments(input_ids: Tensor, attention_mask: Tensor, separator: int) -> Tensor:
    """Return 1 for the tokens of the second text of a pair, 0 elsewhere: (batch, tokens).

    A separator belongs to the text before it; special tokens that a user typed are no separators.
    """
    ends = (input_ids == separator).to(torch.long)
    return ((ends.cumsum(1) - ends) > 0).to(torch.long) * attention_mask


def encoder_of(bundle: Bundle) -> PreTrainedModel:
    """Return a bundle's encoder, a head of the checkpoint's own left behind.

    Raises:
        OptionError: if it has learned a template, which its tokenizer puts around every text.
    """
    refuse_template(bundle)
    encoder = read_bundle(bundle).encoder
    return base_of(encoder) if bundle.card.pooling == "own" else encoder


def refuse_template(bundle: Bundle) -> None:
    """Refuse a bundle that `louver cloze` made.

    Raises:
        OptionError: if it is one.
    """
    if bundle.card.pooling == "mask":
        raise OptionError(f"{bundle.path} answers by a template; give the bundle that louver cloze was given")


def pooling_of(card: Card, wanted: Pooling | None = None) -> Pooling:
    """Return how token states become one vector: as wanted, as the card says, or the mean where it says nothing of it.

    Raises:
        OptionError: if another pooling than "cls" or "mean" is wanted.
    """
    if wanted not in (None, "cls", "mean"):
        raise OptionError(unknown("pooling", wanted, ["cls", "mean"]))
    return wanted or ("mean" if card.pooling in ("own", "none", "mask") else card.pooling)


def _dropout_of(encoder: PreTrainedModel) -> float:
    """Return the dropout that transformers puts before a family's classification heads."""
    for name in ("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "hidden_dropout_prob"):
        found = getattr(encoder.config, name, None)
        if found is not None:
            return float(found)
    return 0.1


def separator_of(directory: Path, encoder: PreTrainedModel) -> int | None:
    """Return the id after which the second text of a pair begins, if the encoder tells segments apart."""
    if int(getattr(encoder.config, "type_vocab_size", 0) or 0) < 2:
        return None
    return Tokenizer.open(directory).separator


def _bottlenecks_in(directory: Path) -> dict[str, Tensor]:
    """Return the weights of bottlenecks, which transformers does not know, from its weight files."""
    found = {}
    for file in directory.glob("model*.safetensors"):
        with safe_open(file, "pt") as stream:
            found.update({name: stream.get_tensor(name) for name in stream.keys() if ".bottleneck." in name})  # noqa: SIM118
    return found


def read_bundle(bundle: Bundle, *, pattern: Pattern | str | None = None, dense: bool = False) -> Reader:
    """Build the module of a bundle with its weights, in evaluation mode.

    Args:
        bundle: a bundle that holds transformers files.
        pattern: another pattern than the bundle's.
        dense: leave transformers' own attention (SDPA) in place; for baselines.

    Raises:
        BundleError: if the bundle was exported: it has no transformers files.
    """
    if bundle.card.onnx:
        raise BundleError(f"{bundle.path} holds ONNX graphs alone; give the bundle that it was exported from")
    own = bundle.card.pooling == "own"
    architecture = "AutoModelForMaskedLM" if bundle.card.pooling == "mask" else None if own else "AutoModel"
    if own and not dense:
        encoder, _ = load(bundle.path, pattern=pattern)
    else:
        encoder, _ = load_plain(bundle.path, architecture=architecture)
    if not own and not dense:
        plug(encoder, pattern or bundle.card.pattern, override=getattr(encoder.config, "louver_override", False))
    if bundle.card.bottleneck:
        add_bottlenecks(encoder, bundle.card.bottleneck)
        encoder.load_state_dict(_bottlenecks_in(bundle.path), strict=False)
    head = load_file(bundle.path / HEAD) if (bundle.path / HEAD).is_file() else {}
    if bundle.card.pooling == "mask":
        return Reader(encoder, "mask", words=LabelWords(int(head["mask"]), head["words"])).eval()
    separator = separator_of(bundle.path, encoder) if bundle.card.inputs == "pair" else None
    reader = Reader(encoder, bundle.card.pooling, len(head["bias"]) if head else 0, separator=separator)
    if reader.head is not None:
        reader.head.load_state_dict(head)
    return reader.eval()
