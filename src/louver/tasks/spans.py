"""Rows with spans in them, in the forms in which they are found: offsets, words with BIO tags, answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from louver.decode import Span
from louver.errors import DataError
from louver.text.scripts import stands_close

_TAG = re.compile(r"([BIESLU])-(.+)")


def read_spans(value: object, text: str, where: str) -> tuple[Span, ...]:
    """Read spans by characters: ``[start, end, label]``, or objects with those names.

    Raises:
        DataError: if one is out of the text, empty, unnamed, or overlaps another.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f'{where}: spans must be a list such as [[0, 5, "person"]], got {value!r}')
    spans = sorted(_span(item, where) for item in value)
    for before, span in zip([None, *spans], spans, strict=False):
        if not 0 <= span.start < span.end <= len(text):
            raise DataError(
                f"{where}: span [{span.start}, {span.end}] is not within the {len(text)} characters; mend the row"
            )
        if before is not None and span.start < before.end:
            raise DataError(f"{where}: spans {list(before)} and {list(span)} overlap; keep one of them")
    return tuple(spans)


def _span(item: object, where: str) -> Span:
    if isinstance(item, Mapping):
        item = [item.get("start"), item.get("end"), item.get("label", item.get("type", item.get("entity_group")))]
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 3:
        start, end, label = item
        if type(start) is int and type(end) is int and isinstance(label, str) and label:
            return Span(start, end, label)
    raise DataError(f"{where}: a span is [start, end, label] with whole numbers and a name, got {item!r}")


def read_tagged_words(words: object, tags: object, where: str) -> tuple[str, tuple[Span, ...]]:
    """Join words to a text, and their BIO (or BIOES, BILOU) tags to spans.

    Words of scripts without spaces are joined without them. An I- that continues nothing begins a span, as conlleval
    reads it.

    Raises:
        DataError: if there are not as many tags as words, or a tag is none.
    """
    if not isinstance(words, Sequence) or not isinstance(tags, Sequence) or len(words) != len(tags):
        raise DataError(f"{where}: words and tags must be two lists of the same length; mend the row")
    text, spans, open_label = "", list[list[Any]](), ""
    for word, tag in zip(words, tags, strict=True):
        if not isinstance(word, str) or not word:
            raise DataError(f"{where}: word {word!r} is no text; drop it with its tag")
        if text and not (stands_close(text[-1]) and stands_close(word[0])):
            text += " "
        found = None if tag == "O" else _TAG.fullmatch(str(tag))
        if tag != "O" and found is None:
            raise DataError(f"{where}: tag {tag!r} is neither O nor B-…, I-…; write tags in the BIO scheme")
        if found is not None:
            place, label = found.groups()
            if place in "BSU" or label != open_label:
                spans.append([len(text), 0, label])
            spans[-1][1] = len(text) + len(word)
            open_label = "" if place in "ESLU" else label
        else:
            open_label = ""
        text += word
    return text, tuple(Span(*span) for span in spans)


def read_answers(value: object, text: str, where: str) -> tuple[Span, ...]:
    """Read answers: SQuAD's ``{"text": […], "answer_start": […]}``, a list of ``{"text", "start"}``, or plain texts.

    A plain text is looked for; none means that there is no answer.

    Raises:
        DataError: if an answer does not stand where it says, or nowhere.
    """
    if value is None or value == "":
        return ()
    found = []
    for answer, start in _answers(value, where):
        place = text.find(answer) if start is None else start
        if place < 0 or text[place : place + len(answer)] != answer:
            raise DataError(f"{where}: answer {answer!r} does not stand in the text at character {place}; mend the row")
        if answer:
            found.append(Span(place, place + len(answer), ""))
    return tuple(found)


def _answers(value: object, where: str) -> list[tuple[str, int | None]]:
    """Return (text, start) of each answer; no start where it has to be looked for."""
    items: list[Any] = [value] if isinstance(value, str) else list(value) if isinstance(value, Sequence) else [value]
    if isinstance(value, Mapping) and isinstance(value.get("text"), Sequence) and not isinstance(value["text"], str):
        starts = value.get("answer_start", value.get("start", []))
        if not isinstance(starts, Sequence) or len(starts) != len(value["text"]):
            raise DataError(
                f"{where}: {len(value['text'])} answers with the starts {starts!r}; give one start for each"
            )
        items = [{"text": a, "start": b} for a, b in zip(value["text"], starts, strict=True)]
    found: list[tuple[str, int | None]] = []
    for item in items:
        answer = item.get("text") if isinstance(item, Mapping) else item
        start = item.get("start", item.get("answer_start")) if isinstance(item, Mapping) else None
        if not isinstance(answer, str) or (isinstance(item, Mapping) and type(start) is not int):
            raise DataError(f'{where}: an answer is a text, or {{"text", "start"}}, got {item!r}; mend the row')
        found.append((answer, start))
    return found
