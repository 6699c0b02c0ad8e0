"""What is wrong with a training, by its signs: each finding with its evidence and a remedy.

The signs are seen while a bundle is trained and stay in its history; see `louver.training.doctor` for what is looked at
afterwards. Thresholds are wide: on a healthy run nothing is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from louver.tasks import Classification, Task
from louver.text import Fitted, Text, Tokenizer
from louver.training.watch import Log

_FEW = 20
"""Steps under which curves say nothing."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        name: of the fault, one word or two.
        evidence: what was seen, with numbers.
        remedy: what to try first.
    """

    name: str
    evidence: str
    remedy: str

    def to_json(self) -> dict[str, str]:
        """Return the fields."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}. {self.remedy}"


def of_curves(log: Log, history: Sequence[dict[str, float]], prior: float | None = None) -> list[Finding]:
    """Read the curves of a training.

    Args:
        log: what it did, step by step.
        history: an entry an epoch, with loss and score.
        prior: loss of whoever answers by the frequency of the answers alone; None if that is not known.
    """
    found = [_not_falling(log, prior), _diverging(log, prior), _overfitting(history)]
    found += [_exploding(log), _vanishing(log), _padded(log)]
    return [one for one in found if one is not None]


def _quarters(values: Sequence[float]) -> list[float]:
    return [float(np.mean(part)) for part in np.array_split(np.asarray(values), 4)]


def _not_falling(log: Log, prior: float | None) -> Finding | None:
    if len(log.losses) < _FEW:
        return None
    first, *_, last = _quarters(log.losses)
    # a start that is good already has no way to fall
    high = last > (0.5 * prior if prior is not None else 0.1)
    if not high or last < 0.98 * first or last > 1.2 * first:
        return None
    beside = "" if prior is None else f"; guessing by frequency has {prior:.3g}"
    return Finding(
        "loss does not fall",
        f"mean loss {first:.4g} in the first quarter of {len(log.losses)} steps, {last:.4g} in the last{beside}",
        "Raise the learning rate, check that labels belong to their texts, and that something is trained",
    )


def _diverging(log: Log, prior: float | None) -> Finding | None:
    if len(log.losses) < _FEW:
        return None
    losses = np.asarray(log.losses)
    early, *_, late = np.array_split(losses, 4)
    first, last = float(early.mean()), float(late.mean())
    width = max(10, len(losses) // 8)
    low = float(np.convolve(losses, np.full(width, 1 / width), "valid").min())
    # batches of one or two texts differ much: quarters do too
    spread = float(np.sqrt(early.var() / len(early) + late.var() / len(late)))
    rose = last > 1.2 * first and last - first > 4 * spread
    worse_than_guessing = prior is not None and last > 1.5 * prior + 0.1 and last > 0.8 * first
    shot_up = prior is not None and losses.max() > 8 * prior and last > 0.8 * prior  # and never came back
    if not (rose or worse_than_guessing or shot_up or last > 2.5 * low + 0.3):
        return None
    return Finding(
        "divergence",
        f"the loss is {last:.4g} in the last quarter of the steps; it was {losses[0]:.4g} at first, {low:.4g} at best "
        f"and {losses.max():.4g} at worst",
        "Lower the learning rate (a third is a good first try), lengthen the warm-up",
    )


def of_end(ended: str) -> list[Finding]:
    """Say that training ended before its time.

    Args:
        ended: why, if it did.
    """
    remedy = "The best epoch before was kept; lower the learning rate, or look for broken rows"
    return [Finding("no number", ended.partition(": lower")[0], remedy)] if ended else []


def of_start(history: Sequence[dict[str, float]]) -> list[Finding]:
    """Say that no epoch was better than what the training began with.

    Args:
        history: the start's entry, and one an epoch.
    """
    if len(history) < 2:
        return []
    start, best = history[0]["score"], max(entry["score"] for entry in history[1:])
    if best >= start:
        return []
    evidence = f"the start scored {start:.4g} on validation and the best epoch {best:.4g}; the start was kept"
    remedy = "Try a third of the learning rate or three times as much, more texts, or more validation texts to tell"
    return [Finding("nothing gained", evidence, remedy)]


def _overfitting(history: Sequence[dict[str, float]]) -> Finding | None:
    epochs = [entry for entry in history if "loss" in entry]
    if len(epochs) < 3:
        return None
    scores, losses = [e["score"] for e in epochs], [e["loss"] for e in epochs]
    best = int(np.argmax(scores))
    fell = scores[best] - scores[-1]
    if best == len(epochs) - 1 or fell < max(0.02, 0.03 * abs(scores[best])) or losses[-1] >= losses[best]:
        return None
    return Finding(
        "over-fitting",
        f"validation was best after epoch {best + 1} ({scores[best]:.4g}) and fell to {scores[-1]:.4g} while the "
        f"training loss went on falling ({losses[best]:.4g} to {losses[-1]:.4g})",
        "The best epoch was kept; for more, give more texts, fewer epochs, an adapter, or more weight decay",
    )


def _exploding(log: Log) -> Finding | None:
    norms = np.asarray(log.norms)
    if len(norms) < _FEW:
        return None
    middle = float(np.median(norms))
    peaks = int((norms > 20 * max(middle, 1.0)).sum())
    if middle < 50 and not peaks:
        return None
    largest = max(log.by_part, key=lambda part: max(log.by_part[part], default=0.0), default="")
    return Finding(
        "exploding gradients",
        f"gradient norm {middle:.3g} in the middle and {norms.max():.3g} at most; the largest in {largest}",
        "Lower the learning rate, lengthen the warm-up, clip lower (max_gradient), look at the texts of these steps",
    )


def _vanishing(log: Log) -> Finding | None:
    sizes = {part: float(np.median(values)) for part, values in log.by_part.items() if part.startswith("layer")}
    if len(sizes) < 2 or len(log.norms) < _FEW or max(sizes.values()) == 0:
        return None
    weakest = min(sizes, key=lambda part: sizes[part])
    ratio = sizes[weakest] / max(sizes.values())
    if ratio > 1e-3:
        return None
    return Finding(
        "vanishing gradients",
        f"{weakest} gets {ratio:.1e} of the gradient of the layer that gets most",
        "Look whether that layer is frozen or saturated; use layer normalisation as pretrained, a lower learning rate",
    )


def _padded(log: Log) -> Finding | None:
    if log.padding <= 0.3:
        return None
    return Finding(
        "padding",
        f"{log.padding:.0%} of the tokens that were computed were padding",
        "Texts differ much in length within a batch: smaller batches with accumulation, or a lower max_length",
    )


def of_texts(texts: Sequence[Text], fitted: Sequence[Fitted], tokenizer: Tokenizer) -> list[Finding]:
    """Read what a model gets of its texts.

    Args:
        texts: as they were given.
        fitted: what is read of them.
        tokenizer: of the model.
    """
    found = [_cut(fitted), _specials(texts, tokenizer), _unknown(fitted, tokenizer)]
    return [one for one in found if one is not None]


def _cut(fitted: Sequence[Fitted]) -> Finding | None:
    cut = sum(one.cut for one in fitted)
    texts = sum(one.cut > 0 for one in fitted) / max(len(fitted), 1)
    share = cut / max(cut + sum(one.read for one in fitted), 1)
    if texts <= 0.1 or share <= 0.1:
        return None
    return Finding(
        "truncated evidence",
        f"{texts:.0%} of the texts are longer than what is read, and {share:.0%} of all tokens are cut",
        "Read more tokens (louver extend, max_length), or another part of them (truncation window, head_tail)",
    )


def _specials(texts: Sequence[Text], tokenizer: Tokenizer) -> Finding | None:
    names = [token.content for token in tokenizer.core.get_added_tokens_decoder().values() if token.special]
    names = [name for name in names if len(name) > 2]
    whole = [text if isinstance(text, str) else "\n".join(text) for text in texts]
    touched = [name for text in whole for name in names if name in text]
    if not touched:
        return None
    worst = max(set(touched), key=touched.count)
    count = sum(any(name in text for name in names) for text in whole)
    return Finding(
        "special tokens in texts",
        f"{count} texts have a special token written in them, {worst!r} most often",
        "They are read as plain text here; other tools take them for separators, so remove them from the texts",
    )


def _unknown(fitted: Sequence[Fitted], tokenizer: Tokenizer) -> Finding | None:
    names = ("[UNK]", "<unk>")
    unknown = next((i for name in names if (i := tokenizer.core.token_to_id(name)) is not None), None)
    if unknown is None:
        return None
    pieces = [piece for one in fitted for piece in one.pieces]
    share = sum(int((piece == unknown).sum()) for piece in pieces) / max(sum(map(len, pieces)), 1)
    if share <= 0.02:
        return None
    return Finding(
        "unknown tokens",
        f"{share:.1%} of the tokens are {tokenizer.core.id_to_token(unknown)}: the tokenizer does not know this script",
        "Take a checkpoint whose vocabulary has the language, or add words to it (louver vocabulary)",
    )


def of_answers(task: Task, truth: np.ndarray, decisions: np.ndarray) -> list[Finding]:
    """Read answers to validation: classes that are never given.

    Args:
        task: that was learned.
        truth: targets.
        decisions: in their form.
    """
    if not isinstance(task, Classification) or task.kind == "regression":
        return []
    if task.kind == "single":
        there, given = (
            np.bincount(truth, minlength=len(task.labels)),
            np.bincount(decisions, minlength=len(task.labels)),
        )
    else:
        there, given = truth.sum(0), decisions.sum(0)
    dead = [name for name, a, b in zip(task.labels, there, given, strict=True) if a >= 3 and b == 0]
    if not dead:
        return []
    return [
        Finding(
            "dead classes",
            f"never answered on validation though they occur: {', '.join(dead)}",
            "Give them more texts, class_weights, or longer training; look whether their labels are another's",
        )
    ]


def of_vectors(vectors: np.ndarray) -> list[Finding]:
    """Read the vectors that a head gets: whether texts can be told apart at all.

    Args:
        vectors: (texts, width) of different texts.
    """
    if len(vectors) < 8:
        return []
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    near = float((np.linalg.norm(unit.sum(0)) ** 2 - len(unit)) / (len(unit) * (len(unit) - 1)))
    if near <= 0.99:
        return []
    return [
        Finding(
            "collapsed embeddings",
            f"the mean cosine of {len(vectors)} different texts is {near:.4f}",
            "Lower the learning rate, use larger batches or other negatives, start from the checkpoint again",
        )
    ]


def priors(task: Task, truth: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Return the loss of whoever answers by the frequency of the labels alone, where that is simple to say.

    Args:
        task: that is learned.
        truth: targets of training.
        weights: (labels,) of the classes in the loss.
    """
    if not isinstance(task, Classification):
        return None
    if task.kind == "regression":
        return float(np.var(truth))
    if task.kind == "single":
        shares = np.bincount(truth, minlength=len(task.labels)) * (1.0 if weights is None else weights)
        shares = shares / shares.sum()
        return float(-(shares * np.log(np.maximum(shares, 1e-12))).sum())
    there, absent = truth.mean(0) * (1.0 if weights is None else weights), 1 - truth.mean(0)
    p = np.clip(there / (there + absent), 1e-6, 1 - 1e-6)
    return float(-(there * np.log(p) + absent * np.log(1 - p)).mean())
