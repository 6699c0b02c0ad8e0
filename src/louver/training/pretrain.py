"""`pretrain`: let a bundle's encoder find hidden words of your texts, before it is taught anything else.

Masked language modelling (Devlin et al. 2019, section 3.1) on texts packed into rows, each with its own attention and
positions. On a checkpoint this is continued pretraining (Gururangan et al. 2020); on what `create` made it is
pretraining from scratch.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from louver.bundle import Bundle, Record, check_target
from louver.encoders import positions
from louver.encoders.plug import base_of
from louver.encoders.pooling import Reader, refuse_template, separator_of
from louver.encoders.words import has_word_head, masked_model
from louver.errors import DataError
from louver.tasks import Batch
from louver.text import Tokenizer
from louver.text.masking import Masking
from louver.text.tokenizer import Segment
from louver.training import diagnosis
from louver.training.corpus import Collator, Corpus, MaskedRows, PairedRows, collate_rows
from louver.training.fit import Say
from louver.training.judgement import Judgement
from louver.training.learner import Objective
from louver.training.masked import MaskedWords
from louver.training.options import PretrainingOptions, suited, tokens_to_read
from louver.training.processes import mean_over_all
from louver.training.resume import fingerprint
from louver.training.run import Run
from louver.training.written import embedding_card, write_reader


def pretrain(
    bundle: Bundle | str | Path,
    texts: Iterable[object],
    *,
    into: str | Path,
    options: PretrainingOptions | None = None,
    segment: Segment | None = None,
    progress: bool = True,
    say: Say = lambda _: None,
    replace: bool = False,
) -> Bundle:
    """Train an encoder on hidden words.

    Args:
        bundle: what `louver.extend` made, or any bundle with transformers files. A classification head is left behind.
        texts: read once, a thousand at a time; what cannot be read is left out and counted.
        into: directory of the new bundle, which keeps the masked-word head beside the encoder.
        options: how to train.
        segment: cuts a text into words, for units of words in Chinese; ``jieba.lcut`` for example.
        progress: show progress bars.
        say: told the score (minus the validation loss, in nats) of every epoch.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the loss and the perplexity on held-out texts, before and after.

    Raises:
        DataError: if fewer than two texts can be read.
        ModelError: if the tokenizer has no mask token.
        OptionError: if more tokens are asked for than the bundle reads.
        TrainingError: if the loss stops being a number.
    """
    began = time.perf_counter()
    check_target(into, replace=replace)
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    refuse_template(source)
    options = suited(options or PretrainingOptions(), source, say)
    run = Run("pretrain", source, Path(into), options, progress, say, began)
    room = tokens_to_read(options, source)
    tokenizer = Tokenizer.open(source.path)
    masking = Masking(options.share, options.unit, options.masked, options.replaced)
    torch.manual_seed(options.seed)
    if not has_word_head(source):
        say("the bundle has no masked-word head; training begins with a new one")
    encoder = masked_model(source, new_head=True)
    pupil = MaskedWords(encoder, separator_of(source.path, encoder))
    pupil.to("cuda" if torch.cuda.is_available() else "cpu")
    order = nn.Linear(int(encoder.config.hidden_size), 2).to(pupil.encoder.device)
    asks = options.sentences != "none"
    with tempfile.TemporaryDirectory(prefix="louver-corpus-") as scratch:
        corpus = Corpus.build(texts, tokenizer, Path(scratch), room=room - tokenizer.specials, segment=segment)
        train, held_out = _split(corpus, options)

        def rows(numbers: np.ndarray, *, static: bool) -> MaskedRows:
            shared: dict[str, Any] = {"room": room, "seed": options.seed, "static": static}
            if asks:
                return PairedRows(corpus, numbers, tokenizer, masking, wrong=options.sentences, **shared)
            return MaskedRows(corpus, numbers, tokenizer, masking, packing=options.packing, **shared)

        collator = collate_rows(tokenizer.pad_id, positions.offset(pupil.encoder.config))
        validation = rows(held_out, static=True)

        def judge(one: MaskedWords) -> Judgement:
            loss, right = _judged(one, order if asks else None, validation, collator, options.batch_size)
            return Judgement(-loss, np.asarray([right]))

        start = judge(pupil)
        say(f"before: loss {-start.score:.4f} on {len(held_out)} held-out pieces of texts")
        if corpus.unreadable:
            say(f"{corpus.unreadable} texts cannot be read, and were left out")
        result = run.train(
            pupil,
            _objective(order if asks else None),
            rows(train, static=options.static_masks),
            judge,
            start=start,
            learned={"data": fingerprint([corpus.ids, corpus.words, corpus.starts])},
            collator=collator,
            also=order if asks else None,
        )
        guessing = math.log(tokenizer.vocabulary().size)
        right: dict[str, Any] = {"sentences_right": round(float(result.best.logits[0]), 4)} if asks else {}
        record = run.record(
            result,
            diagnosis.of_curves(result.log, result.history, guessing) + diagnosis.of_start(result.history),
            validation={"loss": -result.best.score, "perplexity": math.exp(-result.best.score)},
            before={"loss": -start.score, "perplexity": math.exp(-start.score)},
            **right,
            texts=int(corpus.owners[-1]) + 1,
            unreadable=corpus.unreadable,
            tokens=len(corpus.ids),
        )
    return _write(source, pupil, record, into, replace=replace)


def _split(corpus: Corpus, options: PretrainingOptions) -> tuple[np.ndarray, np.ndarray]:
    """Hold out whole texts, none of which stands in training too; return the numbers of the pieces on both sides."""
    texts = np.unique(corpus.texts)
    if len(texts) < 2:
        raise DataError("pretraining holds out texts to judge by, and the corpus has one; give two different ones")
    count = min(max(1, round(options.validation * len(texts))), len(texts) - 1)
    held_out = texts[np.random.default_rng(options.seed).permutation(len(texts))[:count]]
    apart = np.isin(corpus.texts, held_out)
    return np.flatnonzero(~apart), np.flatnonzero(apart)


def _objective(order: nn.Linear | None) -> Objective:
    """Return the loss of the hidden words, and of the question about sentences if there is one."""

    def loss(pupil: MaskedWords, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, truth, first = pupil.with_first(batch)
        found = mean_over_all(cross_entropy(logits.float(), truth, reduction="sum"), len(truth))
        if order is not None:
            found = found + cross_entropy(order(first).float(), batch["wrong"])
        return found, logits.detach()[:0]

    return loss


@torch.inference_mode()
def _judged(
    pupil: MaskedWords, order: nn.Linear | None, rows: MaskedRows, collator: Collator, batch_size: int
) -> tuple[float, float]:
    """Return the mean loss over all hidden tokens, and the share of right answers about sentences."""
    pupil.eval()
    device = pupil.encoder.device
    total, count, right = 0.0, 0, 0
    for start in range(0, len(rows), batch_size):
        batch = collator([rows[i] for i in range(start, min(start + batch_size, len(rows)))])
        batch = {name: x.to(device) for name, x in batch.items()}
        logits, truth, first = pupil.with_first(batch)
        total += float(cross_entropy(logits.float(), truth, reduction="sum"))
        count += len(truth)
        right += 0 if order is None else int((order(first).argmax(1) == batch["wrong"]).sum())
    if not count:
        raise DataError("the held-out texts have no word that could be hidden; give more texts, or hold out more")
    return total / count, right / len(rows)


def _write(source: Bundle, pupil: MaskedWords, record: Record, into: str | Path, *, replace: bool) -> Bundle:
    """Write the model with its head, and a card that says it gives embeddings."""
    model = pupil.encoder.cpu().eval()
    card = embedding_card(source.card)
    card = card.model_copy(update={"history": [*card.history, record]})
    return write_reader(
        Reader(base_of(model), card.pooling), source, card, into, replace=replace, also=model.save_pretrained
    )
