"""`contrast`: embeddings that are near where texts belong together, by sentence-transformers' losses.

- Texts alone: a text is its own partner, read twice with different dropout (SimCSE, Gao et al. 2021, section 3).
- Pairs, with or without hard negatives: all other partners of a batch are negatives (section 4).
- Scored pairs: their cosines are put in the order of the scores (CoSENT).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from louver.bundle import Bundle, check_target
from louver.encoders.plug import without_attention_dropout
from louver.encoders.pooling import Pooling, Reader, encoder_of
from louver.errors import DataError, OptionError, need_extra
from louver.measure.similarity import cosines
from louver.tasks import Batch, Feature
from louver.tasks.metrics import spearman
from louver.tasks.similar import Similar, check_similar
from louver.text import Tokenizer, Truncation, inputs, rectangle
from louver.training import diagnosis
from louver.training.fit import Say
from louver.training.judgement import Judgement
from louver.training.options import ContrastOptions, suited, tokens_to_read
from louver.training.resume import fingerprint
from louver.training.run import Run
from louver.training.written import embedding_card, write_reader


def contrast(
    bundle: Bundle | str | Path,
    rows: Sequence[Similar],
    *,
    into: str | Path,
    validation: Sequence[Similar] | None = None,
    options: ContrastOptions | None = None,
    pooling: Pooling | None = None,
    progress: bool = True,
    say: Say = lambda _: None,
    replace: bool = False,
) -> Bundle:
    """Train a bundle's embeddings.

    Args:
        bundle: any bundle with transformers files; a head of a task is left behind.
        rows: all single texts, all pairs, all pairs with as many negatives, or all scored pairs.
        into: directory of the new bundle, which `SentenceTransformer(into)` loads too.
        validation: scored pairs, whose rank correlation chooses the epoch. Without them a share of the rows is held
            out, and their loss chooses.
        options: how to train.
        pooling: "cls" or "mean"; the bundle's if None.
        progress: show progress bars.
        say: told the score of every epoch.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the score before and after.

    Raises:
        DataError: if the rows do not fit together, or validation has no scores.
        OptionError: if more tokens are asked for than the bundle reads.
        TrainingError: if the loss stops being a number.
    """
    need_extra("train", "sentence_transformers")
    began = time.perf_counter()
    check_target(into, replace=replace)
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    options = suited(options or ContrastOptions(), source, say)
    run = Run("contrast", source, Path(into), options, progress, say, began)
    check_similar(rows)
    rows = list(dict.fromkeys(rows))  # a row that stands twice would be its own negative
    if validation is not None and any(row.score is None for row in validation):
        raise DataError("validation needs scored pairs; give their scores, or leave it out")
    length = tokens_to_read(options, source)
    card = embedding_card(source.card, pooling)
    tokenizer = Tokenizer.open(source.path)
    reader = Reader(encoder_of(source), card.pooling)
    reader.to("cuda" if torch.cuda.is_available() else "cpu")
    train, held_out = (list(rows), list[Similar]()) if validation is not None else _split(rows, options)
    features = _features(train, tokenizer, card.prompt, length)
    columns = max(2, len(rows[0].texts))
    if not options.attention_dropout:
        without_attention_dropout(reader.encoder)
    drops = any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in reader.encoder.modules())
    if len(rows[0].texts) == 1 and not drops:
        raise OptionError(
            "the encoder has no dropout, so that a text's two readings are one; give pairs, or set hidden_dropout_prob"
        )
    objective = _objective(columns, options.scale, scored=rows[0].score is not None)
    join = _collate(tokenizer.pad_id)
    if validation is not None:
        judge = _by_rank(validation, tokenizer, card.prompt, card.max_length)
    else:
        judge = _by_loss(_features(held_out, tokenizer, card.prompt, length), join, objective, options)
    start = judge(reader)
    measured = "spearman" if validation is not None else "minus the loss"
    say(f"before: {measured} {start.score:.4f}")
    learned = {
        "pooling": card.pooling,
        "data": fingerprint(features),
        "validation": fingerprint([[*row.texts, str(row.score)] for row in validation or held_out]),
    }
    result = run.train(reader, objective, _Rows(features, train), judge, start=start, learned=learned, collator=join)
    prior = None if rows[0].score is not None else math.log(options.batch_size)
    findings = diagnosis.of_curves(result.log, result.history, prior) + diagnosis.of_start(result.history)
    some = list(dict.fromkeys(row.texts[0] for row in rows))[:64]
    findings += diagnosis.of_vectors(_embed(reader, _pieces(some, tokenizer, card.prompt, length), tokenizer.pad_id))
    record = run.record(
        result,
        findings,
        settings={"texts_a_row": len(rows[0].texts), "scored": rows[0].score is not None},
        validation={measured: round(result.best.score, 4)},
        before={measured: round(start.score, 4)},
        n_train=len(train),
    )
    return write_reader(
        reader, source, card.model_copy(update={"history": [*card.history, record]}), into, replace=replace
    )


def _split(rows: Sequence[Similar], options: ContrastOptions) -> tuple[list[Similar], list[Similar]]:
    """Hold out rows that share no text with those that stay."""
    families = _families(rows)
    if len(rows) < 4 or len(set(families)) < 2:
        raise DataError(
            f"contrast holds out rows that share no text with the others, and {len(rows)} rows have "
            f"{len(set(families))} such parts; give four rows or more, or scored pairs as validation"
        )
    count = min(max(2, round(options.validation * len(rows))), len(rows) - 2)
    held: set[int] = set()
    for family in np.random.default_rng(options.seed).permutation(sorted(set(families))).tolist():
        trial = held | {family}
        if sum(one in trial for one in families) <= count or not held:
            held = trial
    parts: tuple[list[Similar], list[Similar]] = ([], [])
    for row, family in zip(rows, families, strict=True):
        parts[family in held].append(row)
    return parts


def _families(rows: Sequence[Similar]) -> list[int]:
    """Number rows so that those that share a text, by whatever others, have the same number."""
    owner = list(range(len(rows)))

    def root(one: int) -> int:
        while owner[one] != one:
            owner[one] = owner[owner[one]]
            one = owner[one]
        return one

    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        for text in row.texts:
            owner[root(number)] = root(first.setdefault(text, number))
    return [root(number) for number in range(len(rows))]


def _features(rows: Sequence[Similar], tokenizer: Tokenizer, prompt: str, length: int) -> list[Feature]:
    """Tokenize every text of every row."""
    pieces = iter(_pieces([text for row in rows for text in row.texts], tokenizer, prompt, length))
    features = []
    for row in rows:
        texts = [next(pieces) for _ in row.texts]
        texts = texts * 2 if len(texts) == 1 else texts  # its own partner: dropout makes the difference
        score = {} if row.score is None else {"score": np.float32(row.score)}
        features.append({"texts": texts, **score})
    return features


class _Rows(Dataset[Feature]):
    """Features, with what makes their batches: lengths, and which rows are not to stand beside each other.

    A text that stands twice in a batch would be a negative of its own partner.
    """

    def __init__(self, features: list[Feature], rows: Sequence[Similar]) -> None:
        self.features = features
        self.lengths = [max(map(len, feature["texts"])) for feature in features]
        numbers: dict[str, int] = {}
        self.keys = None  # scored pairs have no negatives but those that are scored so
        if rows[0].score is None:
            self.keys = [{numbers.setdefault(text, len(numbers)) for text in row.texts} for row in rows]

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, number: int) -> Feature:
        return self.features[number]


def _pieces(texts: Sequence[str], tokenizer: Tokenizer, prompt: str, length: int) -> list[np.ndarray]:
    """Tokenize texts, cut at their end; refuse one that gives no token."""
    found = inputs(tokenizer, texts, max_length=length, truncation=Truncation.HEAD, prompt=prompt)
    for text, one in zip(texts, found, strict=True):
        if one.error is not None:
            raise DataError(f"{text[:60]!r}: {one.error}")
    return [one.pieces[0] for one in found]


def _collate(pad_id: int) -> Callable[[Sequence[Feature]], Batch]:
    """Return a collator: anchors first, then all their partners, then all first negatives."""

    def join(features: Sequence[Feature]) -> Batch:
        columns = len(features[0]["texts"])
        texts = [feature["texts"][column] for column in range(columns) for feature in features]
        ids, mask = (torch.from_numpy(x) for x in rectangle(texts, pad_id))
        batch = {"input_ids": ids, "attention_mask": mask}
        if "score" in features[0]:
            batch["score"] = torch.as_tensor(np.stack([feature["score"] for feature in features]))
        return batch

    return join


def _objective(columns: int, scale: float, *, scored: bool) -> Callable[[Reader, Batch], tuple[Tensor, Tensor]]:
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss

    # the losses want a model of their own only for their forward, which is not called
    loss = (CoSENTLoss if scored else MultipleNegativesRankingLoss)(None, scale=scale)

    def objective(reader: Reader, batch: Batch) -> tuple[Tensor, Tensor]:
        embeddings = reader(batch["input_ids"], batch["attention_mask"]).float()
        parts = list(embeddings.chunk(columns))
        labels = batch.get("score", torch.zeros(len(parts[0]), device=embeddings.device))
        found: Tensor = loss.compute_loss_from_embeddings(parts, labels)
        return found, embeddings.detach()[:0]

    return objective


def _by_rank(rows: Sequence[Similar], tokenizer: Tokenizer, prompt: str, length: int) -> Callable[[Reader], Judgement]:
    """Judge by the rank correlation of cosines and scores."""
    truth = np.asarray([row.score for row in rows])
    texts = sorted({text for row in rows for text in row.texts})
    pieces = _pieces(texts, tokenizer, prompt, length)
    places = {text: place for place, text in enumerate(texts)}

    def judge(reader: Reader) -> Judgement:
        vectors = _embed(reader, pieces, tokenizer.pad_id)
        pairs = [(places[row.texts[0]], places[row.texts[1]]) for row in rows]
        return Judgement(spearman(truth, cosines(vectors, pairs)), np.empty(0))

    return judge


@torch.inference_mode()
def _embed(reader: Reader, pieces: Sequence[np.ndarray], pad_id: int, batch: int = 32) -> np.ndarray:
    reader.eval()
    order = sorted(range(len(pieces)), key=lambda i: len(pieces[i]))
    found: list[np.ndarray] = [np.empty(0)] * len(pieces)
    for start in range(0, len(order), batch):
        members = order[start : start + batch]
        ids, mask = (
            torch.from_numpy(x).to(reader.encoder.device) for x in rectangle([pieces[i] for i in members], pad_id)
        )
        for i, row in zip(members, reader(ids, mask).float().cpu().numpy(), strict=True):
            found[i] = row
    return np.stack(found)


def _by_loss(
    features: list[Feature],
    join: Callable[[Sequence[Feature]], Batch],
    objective: Callable[[Reader, Batch], tuple[Tensor, Tensor]],
    options: ContrastOptions,
) -> Callable[[Reader], Judgement]:
    """Judge by the loss of held-out rows, with the same dropout each time: without it a text alone equals itself."""

    def judge(reader: Reader) -> Judgement:
        reader.train()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(options.seed)
            losses, weights = [], []
            for start in range(0, len(features), options.batch_size):
                some = features[start : start + options.batch_size]
                batch = {name: x.to(reader.encoder.device) for name, x in join(some).items()}
                losses.append(float(objective(reader, batch)[0]))
                weights.append(len(some))
        return Judgement(-float(np.average(losses, weights=weights)), np.empty(0))

    return judge
