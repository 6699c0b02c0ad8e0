"""What fine-tuning and distillation share: features before training, judgement during it, a bundle after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from louver.bundle import Bundle, Card
from louver.encoders.pooling import Reader
from louver.errors import OptionError
from louver.measure.intervals import score as score_with_interval
from louver.tasks import Classification, Features, Splits, Task, collate, metric, tuned
from louver.tasks.metrics import Metric
from louver.text import Tokenizer, cutting
from louver.training import diagnosis
from louver.training.adapting import Adapting
from louver.training.diagnosis import Finding
from louver.training.doctor import doubtful_labels
from louver.training.fit import Fit
from louver.training.judgement import Judgement
from louver.training.learner import Objective
from louver.training.options import TrainingOptions, tokens_to_read
from louver.training.probe import Probe, probe
from louver.training.processes import is_first, wait
from louver.training.resume import fingerprint
from louver.training.run import Run
from louver.training.written import write_reader


@dataclass(frozen=True)
class Lesson:
    """One training: what is learned from which texts, and how answers are judged.

    Attributes:
        run: the training as a step.
        reader: what learns, on the device where training runs.
        card: of the new bundle, as far as it is known before training.
        task: what is learned.
        data: three disjoint parts; the best epoch and the thresholds are chosen on validation, test is not touched.
        options: how to train, and what to do with long texts.
        metric: name of the score that chooses.
        score: the score itself.
        tokenizer: of the model.
        train: texts to learn from; may be cut to save time.
        validation: texts to judge on, as they will be read.
        truth: targets of validation.
        adapting: the adapter that is trained in the place of the encoder, if there is one.
    """

    run: Run
    reader: Reader
    card: Card
    task: Task
    data: Splits
    options: TrainingOptions
    metric: str
    score: Metric
    tokenizer: Tokenizer
    train: Features
    validation: Features
    truth: np.ndarray
    adapting: Adapting | None = None

    @classmethod
    def prepare(
        cls,
        run: Run,
        reader: Reader,
        card: Card,
        task: Task,
        data: Splits,
        options: TrainingOptions,
        metric_name: str | None,
        adapting: Adapting | None = None,
    ) -> Lesson:
        """Tokenize the texts and look up the score.

        Raises:
            OptionError: if more tokens are asked for than the bundle reads, the metric is unknown, or the encoder
                cannot be checkpointed.
            DataError: if a label of validation is unknown.
        """
        name, scorer = metric(task.kind, metric_name)
        length = tokens_to_read(options, run.source)
        rule = cutting(options.truncation or run.source.card.truncation)
        if options.gradient_checkpointing and not reader.encoder.supports_gradient_checkpointing:
            family = reader.encoder.config.model_type
            raise OptionError(
                f"transformers' {family} has no gradient checkpointing; leave it out, or take a smaller batch"
            )
        card = card.model_copy(
            update={
                "task": task.name,
                "kind": task.kind if task.name == "classify" else None,
                "inputs": "pair" if data.train[0].pair else "text",
                "labels": list(task.labels),
                "truncation": rule,
            }
        )
        tokenizer = Tokenizer.open(run.source.path)
        if adapting is not None:
            tokenizer, card = adapting.reads(tokenizer), adapting.of_card(card)
        truth = task.targets(data.validation)
        train = Features.of(data.train, task, tokenizer, card, max_length=length, truncation=rule)
        validation = Features.of(data.validation, task, tokenizer, card, max_length=card.max_length, truncation=rule)
        reader.to("cuda" if torch.cuda.is_available() else "cpu")
        parts = (tokenizer, train, validation, truth, adapting)
        return cls(run, reader, card, task, data, options, name, scorer, *parts)

    def probe(self) -> Probe | None:
        """Give the reader the best linear head on its frozen states, if the options ask for it and texts have one."""
        if not self.options.probe or not isinstance(self.task, Classification):
            return None
        train = self.train
        if self.options.max_length is not None:  # frozen states are cheap: a probe reads whole texts
            train = Features.of(
                self.data.train,
                self.task,
                self.tokenizer,
                self.card,
                max_length=self.card.max_length,
                truncation=self.card.truncation,
            )
        return probe(self.reader, self.task, train, self.validation, self.truth, self.score, self._class_weights())

    def class_weights(self) -> torch.Tensor | None:
        """Return the weight of each class in the loss, if the options ask for it."""
        weights = self._class_weights()
        return None if weights is None else torch.from_numpy(weights).to(self.reader.encoder.device)

    def _class_weights(self) -> np.ndarray | None:
        if not self.options.class_weights or self.task.kind == "regression":
            return None
        return self.task.class_weights(self.data.train)

    def teach(
        self,
        objective: Objective,
        *,
        start: Probe | None,
        train: Features | None = None,
        also: nn.Module | None = None,
    ) -> Fit:
        """Train the reader, and leave its best epoch's weights in it; the probe it starts from may be the best.

        Args:
            objective: loss of a batch.
            start: the probe, if there was one.
            train: rows to learn from, if not the lesson's.
            also: what else learns, and is not kept.
        """
        train = train or self.train
        judged = None if start is None else self._judge(start.logits)
        if judged is not None:
            self.run.say(f"linear probe: score {judged.score:.4f}")
        learned = {
            "metric": self.metric,
            "card": self.card.model_dump(mode="json", exclude={"golden", "history"}),
            "adapter": None if self.adapting is None else self.adapting.options.model_dump(mode="json"),
            "data": fingerprint([train.rows, self.validation.rows, self.truth]),
        }
        return self.run.train(
            self.reader,
            objective,
            train.rows,
            lambda reader: self._judge(self.validation.logits(reader)),
            start=judged,
            learned=learned,
            collator=collate(self.tokenizer.pad_id),
            also=also,
        )

    def _judge(self, logits: np.ndarray) -> Judgement:
        """Score answers to validation, at the thresholds that are best for them."""
        return Judgement(tuned(self.task, self.score, logits, self.truth), logits)

    def _diagnose(self, result: Fit, decisions: np.ndarray) -> list[Finding]:
        """Look for what is wrong with texts, curves, answers and vectors."""
        targets = self.task.targets(self.data.train)
        found = diagnosis.of_texts(self.train.texts, self.train.fitted, self.tokenizer)
        prior = diagnosis.priors(self.task, targets, self._class_weights())
        found += diagnosis.of_curves(result.log, result.history, prior)
        found += diagnosis.of_answers(self.task, self.truth, decisions)
        if self.task.per_token:
            return found
        few = self.validation.first(64)
        found += diagnosis.of_vectors(np.stack(few.answers(self.reader, ask=self.reader.pooled)))
        return [*found, *doubtful_labels(self.task, self.data.validation, result.best.logits)[1]]

    def write(
        self,
        result: Fit,
        *,
        probe: Probe | None,
        settings: dict[str, Any] | None = None,
        replace: bool,
    ) -> Bundle:
        """Tune the thresholds, score validation, and write the trained reader as a bundle; the first process does."""
        if not is_first():
            wait()
            return Bundle.open(self.run.into, verify=False)
        logits = result.best.logits
        thresholds = self.task.tune_thresholds(logits, self.truth, self.score)
        decisions = self.task.decisions(logits, thresholds)
        found = score_with_interval(self.score, self.truth, decisions, seed=self.options.seed)
        settings, adapter = {**(settings or {}), "metric": self.metric}, dict[str, Any]()
        if self.adapting is not None:
            settings |= {"adapter": self.adapting.options.model_dump()}
            adapter = {"adapter": self.adapting.merge(self.validation)}
        record = self.run.record(
            result,
            self._diagnose(result, decisions),
            settings=settings,
            validation={self.metric: found.to_json()},
            n_train=len(self.data.train),
            probe=None if probe is None else probe.to_json(),
            **adapter,
        )
        card = self.card.model_copy(update={"thresholds": thresholds, "history": [*self.card.history, record]})

        def also(draft: Path) -> None:
            if self.adapting is not None:
                self.adapting.write(draft, card)

        return write_reader(self.reader, self.run.source, card, self.run.into, replace=replace, also=also)
