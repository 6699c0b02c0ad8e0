"""`run`: walk a recipe, gate every step that may cost accuracy, resume what a kill left, and report.

A step's bundle is named by a key over all that shapes it: its parent's key, the data, its settings, the seed, the
versions of what computes and louver's own source. A bundle that stands is not made again. Everything is chosen and
gated on validation; the test set is read once, for the report.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from louver.bundle import Bundle
from louver.compression import DistillOptions, QuantizeOptions, distill, quantize
from louver.encoders import extend
from louver.errors import OptionError
from louver.export import export
from louver.measure.baselines import Baseline
from louver.measure.evaluate import Answers, Evaluation, evaluate
from louver.measure.intervals import Verdict, judge, relative_drop
from louver.recipes.schema import BaselineSpec, ExtendOptions, Recipe, Step
from louver.report.contenders import Contender
from louver.report.write import write_report
from louver.storage import locked, storing, write_text
from louver.tasks import Columns, Splits, make_splits, metric, read_examples, task_of
from louver.training import TrainingOptions, finetune
from louver.versions import source_digest, versions

Say = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """A step's bundle, and what the gate said of it."""

    step: Step
    key: str
    bundle: Bundle
    verdict: Verdict | None = None
    pays: bool = True
    """False if a quantized bundle was measured to be no faster, and the recipe keeps faster ones only."""

    @property
    def accepted(self) -> bool:
        """Whether later steps may build on it."""
        return self.pays and (self.verdict is None or self.verdict.accepted)

    @property
    def note(self) -> str:
        """What the gate said."""
        said = "" if self.verdict is None else str(self.verdict)
        return said if self.pays else f"{said}; no faster than float32 on this machine"


def run(recipe: Recipe, *, into: str | Path | None = None, say: Say = print, progress: bool = True) -> dict[str, Any]:
    """Run a recipe to its report.

    Args:
        recipe: what to do.
        into: run directory; ``runs/<name>`` if None.
        say: told each thing that happens, in one line.
        progress: show progress bars.

    Returns:
        The report, as `report.json` holds it.

    Raises:
        RecipeError: if another process runs there.
    """
    directory = Path(into) if into is not None else Path("runs") / recipe.name
    with locked(directory):
        write_text(directory / "recipe.yaml", recipe.to_yaml())
        return _Run(recipe, directory, say, progress).walk()


class _Run:
    """One walk through a recipe."""

    def __init__(self, recipe: Recipe, directory: Path, say: Say, progress: bool) -> None:
        self.recipe = recipe
        self.directory = directory
        self.say = say
        self.progress = progress
        self.data = self._read_data()
        self.fingerprint = _hash_data(self.data)

    def _read_data(self) -> Splits:
        spec = self.recipe.data
        columns = Columns(spec.text, spec.label, spec.split, spec.group, spec.date, spec.labels)
        found = read_examples(spec.path, columns)
        splits = make_splits(
            found, seed=self.recipe.seed, shares=spec.shares, by=spec.by, drop=spec.drop, limits=dict(spec.limits)
        )
        counts = f"{len(splits.train)} training, {len(splits.validation)} validation, {len(splits.test)} test texts"
        dropped = {k: v for k, v in splits.dropped.items() if v}
        self.say(f"data: {counts}" + (f", dropped {dropped}" if dropped else ""))
        return splits

    def walk(self) -> dict[str, Any]:
        """Make every step's bundle, then the baselines', then the report."""
        made: list[Made] = []
        current: Made | None = None
        reference: Made | None = None
        validated: dict[str, Evaluation] = {}
        for number, step in enumerate(self.recipe.steps):
            if step.verb == "quantize" and current is not None and not current.bundle.card.onnx:
                self.say("skipped: quantize; export was refused, and there are no other graphs")
                continue
            one = self._make(step, current, f"{number + 1:02d}-{step.verb}")
            if reference is None and step.verb == "finetune":
                reference = one
                validated[one.key] = self._validate(one.bundle)
            elif reference is not None:
                validated[one.key] = self._validate(one.bundle)
                verdict = self._gate(validated[reference.key], validated[one.key])
                one = Made(one.step, one.key, one.bundle, verdict, _pays(one))
                self.say(f"gate: {step.verb}: {one.note}")
            made.append(one)
            if one.accepted:
                current = one
            else:
                assert current is not None
                self.say(f"refused: {step.verb}; the run goes on from {current.bundle.path.name}")
        assert reference is not None, "the schema asks for a finetune step"
        taught = made[made.index(reference) :]  # what came before has other labels, or none
        named = zip(_names([one.step.verb for one in taught]), taught, strict=True)
        scored = self._baselines(reference, made) + [self._bundle_contender(name, one) for name, one in named]
        return write_report(
            self.directory,
            self.recipe.to_yaml(),
            scored,
            self.data,
            metric_name=self.recipe.metric,
            reference=next(c.name for c in scored if c.bundle is reference.bundle and c.kind == "bundle"),
            documents=self.recipe.measure.documents,
            rounds=self.recipe.measure.rounds,
            seed=self.recipe.seed,
            say=self.say,
        )

    def _make(self, step: Step, parent: Made | None, name: str) -> Made:
        """Make a step's bundle, or find it made."""
        needs_data = step.verb in ("finetune", "distill")
        key = _key(
            step.verb,
            step.options.model_dump(mode="json"),
            parent.key if parent else _model_key(self.recipe.model),
            [self.fingerprint, self.recipe.metric, self.recipe.seed] if needs_data else [],
        )
        target = self.directory / "bundles" / f"{name}-{key[:12]}"
        if target.exists():
            self.say(f"{name}: found, {target}")
            return Made(step, key, Bundle.open(target))
        began = time.perf_counter()
        self.say(f"{name}: begins")
        bundle = self._do(step, parent, target)
        self.say(f"{name}: done in {time.perf_counter() - began:.0f} s, {target}")
        return Made(step, key, bundle)

    def _do(self, step: Step, parent: Made | None, into: Path) -> Bundle:
        options = step.options
        if isinstance(options, ExtendOptions):
            return extend(self.recipe.model, into=into, **options.model_dump())
        assert parent is not None, "the schema lets only extend come first"
        shared: dict[str, Any] = {"metric_name": self.recipe.metric, "progress": self.progress, "say": self.say}
        if isinstance(options, TrainingOptions) and "seed" not in options.model_fields_set:
            options = options.model_copy(update={"seed": self.recipe.seed})
        if isinstance(options, TrainingOptions) and options.report is None:
            options = options.model_copy(update={"report": ()})  # curves are in every bundle; a run holds bundles alone
        if isinstance(options, DistillOptions):
            return distill(parent.bundle, self.data, into=into, options=options, **shared)
        if isinstance(options, TrainingOptions):
            return finetune(parent.bundle, self.data, into=into, options=options, **shared)
        if isinstance(options, QuantizeOptions):
            return quantize(parent.bundle, into=into, options=options)
        return export(parent.bundle, into=into)

    def _validate(self, bundle: Bundle) -> Evaluation:
        """Answer validation with a bundle, or remember its answers."""
        digest = hashlib.sha256(f"{bundle.digest}{self.fingerprint}".encode()).hexdigest()[:16]
        kept = self.directory / "validation" / f"{digest}.npy"
        answers: Answers | None = _Kept(np.load(kept)) if kept.is_file() else None
        found = evaluate(bundle, self.data.validation, metric_name=self.recipe.metric, answers=answers)
        if answers is None:
            with storing(kept):
                kept.parent.mkdir(exist_ok=True)
                draft = kept.with_suffix(".tmp.npy")
                np.save(draft, found.logits)
                draft.replace(kept)
        return found

    def _gate(self, before: Evaluation, after: Evaluation) -> Verdict:
        kind = "single" if after.truth.dtype == np.int64 else "multi" if after.truth.ndim == 2 else "regression"
        _, scorer = metric(kind, self.recipe.metric)
        drop = relative_drop(scorer, after.truth, before.decisions, after.decisions, seed=self.recipe.seed)
        return judge(drop, self.recipe.max_drop)

    def _bundle_contender(self, name: str, one: Made) -> Contender:
        return Contender(name, "bundle", one.bundle, accepted=one.accepted, note=one.note)

    def _baselines(self, reference: Made, made: list[Made]) -> list[Contender]:
        """Make the baselines' bundles and say how each is run."""
        found = []
        short: Made | None = None
        for spec in self.recipe.baselines:
            if spec.kind == "dense":
                bundle = self._dense(reference, made) if spec.train else reference.bundle
                length = bundle.card.max_length
                note = "trained dense" if spec.train else "the finetune bundle's weights"
            else:
                short = short or self._truncated(reference, made)
                bundle, length, note = short.bundle, short.bundle.card.max_length, "trained on the first tokens"
            found.append(self._baseline(spec, bundle, length, note))
        return [replace(c, name=name) for c, name in zip(found, _names([c.name for c in found]), strict=True)]

    def _baseline(self, spec: BaselineSpec, bundle: Bundle, length: int, note: str) -> Contender:
        thresholds = None
        if spec.kind == "windows" and bundle.card.kind == "multi":
            # pooled answers lie higher than those of one window, so they get thresholds of their own
            task = task_of(bundle.card)
            answers = Baseline(bundle, spec.kind, max_length=length, batch_size=spec.batch_size)
            found = evaluate(bundle, self.data.validation, metric_name=self.recipe.metric, answers=answers)
            _, scorer = metric(task.kind, self.recipe.metric)
            thresholds = tuple(task.tune_thresholds(found.logits, found.truth, scorer))
        return Contender(
            f"{spec.kind}-{length}{'-trained' if spec.train else ''}",
            "baseline",
            bundle,
            baseline=spec.kind,
            max_length=length,
            batch_size=spec.batch_size,
            thresholds=thresholds,
            note=f"transformers, SDPA, batches of {spec.batch_size}; {note}",
        )

    def _truncated(self, reference: Made, made: list[Made]) -> Made:
        """Train the checkpoint as it came, on the first tokens it can read."""
        original = made[0].bundle.card.original_length
        return self._other_way(reference, original, "truncated")

    def _dense(self, reference: Made, made: list[Made]) -> Bundle:
        return self._other_way(reference, made[0].bundle.card.max_length, "dense").bundle

    def _other_way(self, reference: Made, length: int, name: str) -> Made:
        """Extend and fine-tune with full attention at another length, with the recipe's own settings otherwise."""
        first = next(s.extend for s in self.recipe.steps if s.extend is not None)
        extended = Step(extend=first.model_copy(update={"max_length": length, "pattern": "full", "short": "same"}))
        trained = cast(TrainingOptions, reference.step.options)
        limit = min(length, trained.max_length or length)
        tuned = Step(finetune=trained.model_copy(update={"max_length": limit}))
        return self._make(tuned, self._make(extended, None, f"baseline-{name}-extend"), f"baseline-{name}-finetune")


class _Kept:
    """Answers that were given before."""

    def __init__(self, logits: np.ndarray) -> None:
        self._logits = logits

    def logits(self, texts: Any) -> np.ndarray:
        if len(texts) != len(self._logits):
            raise OptionError(
                f"{len(self._logits)} answers were kept for {len(texts)} texts; delete the run's validation/"
            )
        return self._logits


def _pays(one: Made) -> bool:
    """Say whether a bundle is worth having: a quantized one must be faster, unless the recipe keeps it anyway."""
    options = one.step.options
    if not isinstance(options, QuantizeOptions) or options.keep == "always":
        return True
    return bool(one.bundle.card.history[-1].numbers["pays"])


def _names(words: list[str]) -> list[str]:
    """Return the words, numbered from the second one of a kind."""
    return [w if words[:i].count(w) == 0 else f"{w}-{words[:i].count(w) + 1}" for i, w in enumerate(words)]


def _key(verb: str, settings: dict[str, Any], parent: str, rest: list[Any]) -> str:
    whole = json.dumps([verb, settings, parent, rest, versions(), source_digest()], sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


def _model_key(name: str) -> str:
    """Name a checkpoint by its contents, or by its hub name."""
    directory = Path(name)
    if not directory.is_dir():
        return name
    digest = hashlib.sha256()
    for file in sorted(directory.glob("*")):
        if file.suffix in (".json", ".safetensors", ".txt"):
            digest.update(file.name.encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _hash_data(data: Splits) -> str:
    digest = hashlib.sha256()
    for part in (data.train, data.validation, data.test):
        for example in part:
            digest.update(json.dumps([example.text, example.label]).encode())
        digest.update(b"|")
    return digest.hexdigest()
