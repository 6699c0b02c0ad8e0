"""Adversarial changes of embeddings, and labels that serve another domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import colour_rows, write_jsonl
from torch import Tensor, nn

from louver.bundle import Bundle
from louver.encoders import read_bundle
from louver.errors import OptionError
from louver.measure.evaluate import evaluate
from louver.tasks import Columns, Splits, make_splits, read_examples
from louver.text import Tokenizer, Truncation, inputs, rectangle
from louver.training import TrainingOptions, finetune
from louver.training.adversarial import with_adversary
from louver.training.domain import _Reversed


class Linear(nn.Module):
    """A loss that is linear in the embeddings: the worst change of a given length is known."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 4)
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = (self.table(ids) @ self.weight).sum(1).mean()
        return found


@pytest.mark.parametrize("steps", [1, 3])
def test_the_worst_change_of_a_linear_loss(steps: int) -> None:
    model, ids = Linear(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    clean = model(ids)
    found = with_adversary(model.table, clean, lambda: model(ids), size=0.5, steps=steps)
    # the gradient of a text is its weight at each of 3 tokens; moved 0.5 along it, the text's sum grows by its length
    worst = clean + 0.5 * float(model.weight.detach().norm()) * 3**0.5
    assert found.detach().item() == pytest.approx(float((clean + worst).detach() / 2), abs=1e-5)
    torch.autograd.backward(found)
    assert model.table.weight.grad is not None
    assert not model.table._forward_hooks  # nothing stays behind


def splits(path: Path, rows: list[dict[str, Any]]) -> Splits:
    return make_splits(read_examples(write_jsonl(path, rows), Columns()), drop=["duplicates"])


@pytest.mark.parametrize("kind", ["fgm", "pgd"])
def test_adversaries_train_every_kind_of_task(kind: Any, fresh_bundle: Bundle, tmp_path: Path) -> None:
    options = TrainingOptions(epochs=2, learning_rate=1e-3, max_length=64, adversary=kind)
    data = splits(tmp_path / "rows.jsonl", colour_rows(160))
    made = finetune(fresh_bundle, data, into=tmp_path / "b", options=options, progress=False)
    assert evaluate(made, data.test).score.value > 0.9
    plain = options.model_copy(update={"adversary": None, "seed": 0})
    other = finetune(fresh_bundle, data, into=tmp_path / "c", options=plain, progress=False)
    losses = [one.card.history[-1].numbers["curves"]["loss"][0] for one in (made, other)]
    assert losses[0] > losses[1]  # the same first batch, and the worst change beside it


def test_a_reversed_gradient() -> None:
    states = torch.ones(3, requires_grad=True)
    found = _Reversed.apply(states, 0.5)  # type: ignore[no-untyped-call]
    torch.autograd.backward(found.sum())
    assert torch.equal(found, states)
    assert states.grad is not None
    assert states.grad.tolist() == [-0.5] * 3


def marked(count: int, mark: str, seed: int) -> list[dict[str, Any]]:
    return [{**row, "text": f"{mark} {row['text']} {mark}"} for row in colour_rows(count, seed=seed)]


def test_states_say_less_of_the_domain(fresh_bundle: Bundle, tmp_path: Path) -> None:
    """How far the domains' mean vectors stand apart, beside how far their texts do; the labels are learned as well."""
    data = splits(tmp_path / "rows.jsonl", marked(160, "north", 0))
    others = [row["text"] for row in marked(160, "south", 1)]
    options = TrainingOptions(epochs=6, learning_rate=1e-3, max_length=64, domain_weight=1.0, patience=6, probe=False)
    apart = {}
    for name, domain in (("plain", None), ("turned", others)):
        made = finetune(fresh_bundle, data, into=tmp_path / name, options=options, domain=domain, progress=False)
        assert evaluate(made, data.test).score.value > 0.9
        tokenizer, reader, states = Tokenizer.open(made.path), read_bundle(made), []
        for texts in ([e.text for e in data.train[:80]], others[:80]):
            rows = inputs(tokenizer, texts, max_length=64, truncation=Truncation.HEAD)
            ids, mask = (torch.from_numpy(x) for x in rectangle([row.pieces[0] for row in rows], tokenizer.pad_id))
            with torch.no_grad():
                states.append(reader.pooled(ids, mask))
        between = (states[0].mean(0) - states[1].mean(0)).norm()
        apart[name] = float(between / torch.cat(states).std(0).norm())
    assert apart["turned"] < 0.7 * apart["plain"], apart


def test_what_other_domains_cannot_serve(fresh_bundle: Bundle, tmp_path: Path) -> None:
    named = [{"text": f"Ann {i}", "spans": [[0, 3, "per"]]} for i in range(20)]
    tagged = make_splits(read_examples(write_jsonl(tmp_path / "t.jsonl", named), Columns.of("tag"), "tag"))
    pairs = write_jsonl(tmp_path / "p.jsonl", [{**row, "pair": "x"} for row in colour_rows(40)])
    paired = make_splits(read_examples(pairs, Columns.of("classify", pair="pair")))
    options = TrainingOptions(epochs=1)
    for task, data in (("tag", tagged), ("classify", paired)):
        with pytest.raises(OptionError, match="texts of another domain serve labels of single texts; leave them out"):
            finetune(fresh_bundle, data, into=tmp_path / "b", task=task, options=options, domain=["x"], progress=False)
