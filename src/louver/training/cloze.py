"""`cloze`: labels learned as words in a template, from no examples or few (Schick & Schütze 2021)."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from louver.bundle import Bundle, check_target
from louver.encoders.pooling import Reader
from louver.encoders.words import Cloze, Template, Words
from louver.errors import DataError
from louver.measure.intervals import score as score_with_interval
from louver.tasks import Batch, Classification, Splits, collate, metric
from louver.text.tokenizer import TEMPLATE, write_setting
from louver.training import diagnosis
from louver.training.fit import Say
from louver.training.judgement import Judgement
from louver.training.options import ClozeOptions, suited, tokens_to_read
from louver.training.resume import fingerprint
from louver.training.run import Run
from louver.training.sharded import whole
from louver.training.written import embedding_card, write_reader


def cloze(
    bundle: Bundle | str | Path,
    data: Splits,
    template: Template,
    *,
    into: str | Path,
    options: ClozeOptions | None = None,
    progress: bool = True,
    say: Say = lambda _: None,
    replace: bool = False,
) -> Bundle:
    """Teach a masked-word head the words of labels.

    Args:
        bundle: with a masked-word head.
        data: three disjoint parts with one label a text; training may have a handful. Test is not touched.
        template: pattern and words; its labels are those of the rows.
        into: directory of the new bundle: a classification that answers by words, exports and serves as any other.
        options: how to train.
        progress: show progress bars.
        say: told the score of every epoch.
        replace: write over an old bundle.

    Returns:
        The new bundle; its history holds the accuracy on validation without examples and with them.

    Raises:
        DataError: if a label has no words.
        OptionError: if the template cannot be used, or more tokens are asked for than the bundle reads.
    """
    began = time.perf_counter()
    check_target(into, replace=replace)
    source = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    options = suited(options or ClozeOptions(), source, say)
    run = Run("cloze", source, Path(into), options, progress, say, began)
    words = Words(source)
    asked = Cloze(words, template)
    task = Classification("single", asked.labels)
    for example in (*data.train, *data.validation):
        if not isinstance(example.label, str) or example.pair:
            raise DataError(f"a cloze answers one label of one text, got {example.label!r}; take rows of that kind")
    missing = sorted({str(e.label) for part in (data.train, data.validation) for e in part} - set(asked.labels))
    if missing:
        raise DataError(f"label {missing[0]!r} has no words in the template; give it some")
    torch.manual_seed(options.seed)
    reader = asked.reader().to("cuda" if torch.cuda.is_available() else "cpu")
    length = tokens_to_read(options, source)
    whole(options, "a cloze")
    targets = task.targets(data.train)
    texts = asked.rows([e.text for e in data.train], length)
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(texts, targets, strict=True)]
    truth, (name, scorer) = task.targets(data.validation), metric("single")

    def judge(_: Reader) -> Judgement:
        logits = asked.logits([e.text for e in data.validation])
        return Judgement(scorer(truth, task.decisions(logits)), logits)

    def objective(reader: Reader, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = reader(batch["input_ids"], batch["attention_mask"]).float()
        return cross_entropy(logits, batch["labels"]), logits.detach()

    start = judge(reader)
    say(f"no examples: {name} {start.score:.4f}")
    held_out = asked.rows([e.text for e in data.validation], source.card.max_length)
    said = {"pattern": template.pattern, "words": {label: list(words) for label, words in template.words.items()}}
    learned = {"template": said, "data": fingerprint([rows, held_out, truth])}
    padded = collate(words.tokenizer.pad_id)
    result = run.train(reader, objective, rows, judge, start=start, learned=learned, collator=padded)
    decisions = task.decisions(result.best.logits)
    findings = diagnosis.of_curves(result.log, result.history, diagnosis.priors(task, targets))
    findings += diagnosis.of_start(result.history) + diagnosis.of_answers(task, truth, decisions)
    record = run.record(
        result,
        findings,
        settings=said,
        no_examples=score_with_interval(scorer, truth, task.decisions(start.logits)).to_json(),
        validation={name: score_with_interval(scorer, truth, decisions).to_json()},
        n_train=len(data.train),
    )
    about = {"task": "classify", "kind": "single", "inputs": "text", "labels": list(asked.labels), "pooling": "mask"}
    card = embedding_card(source.card).model_copy(
        update={**about, "prompt": "", "truncation": "head", "history": [*source.card.history, record]}
    )
    around = [ids.tolist() for ids in asked.around]
    also = functools.partial(write_setting, key=TEMPLATE, value=around)
    return write_reader(reader, source, card, into, replace=replace, also=also)
