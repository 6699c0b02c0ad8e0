from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import pytest
import torch
import transformers
from tests.conftest import large_weights

from louver.attention import Documents, attend
from louver.encoders import positions
from louver.encoders.plug import (
    FAMILIES,
    _split_mask,
    drop_edges,
    keep_layers,
    layer_patterns,
    plug,
    without_attention_dropout,
)
from louver.errors import ModelError, OptionError, PatternError
from louver.patterns import parse

SIZE: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 200,
}
CONFIGS: dict[str, Any] = {
    "bert": transformers.BertConfig(**SIZE, pad_token_id=0),
    "roberta": transformers.RobertaConfig(**SIZE, pad_token_id=1),
    "xlm-roberta": transformers.XLMRobertaConfig(**SIZE, pad_token_id=1),
    "camembert": transformers.CamembertConfig(**SIZE, pad_token_id=1),
    "electra": transformers.ElectraConfig(**SIZE, embedding_size=16, pad_token_id=0),
    "albert": transformers.AlbertConfig(**SIZE, embedding_size=16, pad_token_id=0),
    "distilbert": transformers.DistilBertConfig(
        vocab_size=200, dim=32, n_layers=3, n_heads=4, hidden_dim=64, max_position_embeddings=200, pad_token_id=0
    ),
    "modernbert": transformers.ModernBertConfig(
        **SIZE,
        local_attention=16,
        global_attn_every_n_layers=2,
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=3,
        bos_token_id=2,
        eos_token_id=3,
    ),
}


def build(family: str) -> Any:
    """Return the same model at every call, with transformers' own attention: `plug` writes into a model's config."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(copy.deepcopy(CONFIGS[family])).eval()
    assert model.config._attn_implementation == "sdpa"
    large_weights(model)
    return model


def batch(family: str, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 200, (3, 150), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate((150, 71, 9)):
        mask[row, slice(length, None) if side == "right" else slice(0, 150 - length)] = 0
    return torch.where(mask.bool(), ids, CONFIGS[family].pad_token_id), mask


def measure(found: torch.Tensor, expected: torch.Tensor, mask: torch.Tensor) -> float:
    real = mask.bool()
    return float((found - expected)[real].abs().max() / (1 + expected[real].abs().max()))


def test_every_family_is_tested() -> None:
    assert set(CONFIGS) == set(FAMILIES)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", sorted(CONFIGS))
@torch.no_grad()
def test_full_equals_transformers_and_a_window_does_not(family: str, side: str) -> None:
    model = build(family)
    ids, mask = batch(family, side)
    expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    found = plug(model, "full")(input_ids=ids, attention_mask=mask).last_hidden_state
    assert measure(found, expected, mask) <= 1e-5
    other = plug(model, "window(4)")(input_ids=ids, attention_mask=mask).last_hidden_state
    assert measure(other, expected, mask) > 1e-2
    without_padding = plug(model, "full")(input_ids=ids).last_hidden_state
    assert measure(without_padding[1:], expected[1:], mask[1:]) > 1e-2


@pytest.mark.parametrize("pattern", ["full", "window(6) | global(1)"])
@pytest.mark.parametrize("family", sorted(CONFIGS))
@torch.no_grad()
def test_packed_texts_have_the_states_that_they_have_alone(family: str, pattern: str) -> None:
    model = plug(build(family), pattern)
    ids = batch(family, "right")[0][:1].repeat(2, 1)  # the row without padding: RoBERTa counts positions by it
    lengths = [[60, 1, 39, 50], [30, 70]]  # of texts in a row, padding behind the second
    mask = torch.arange(150) < torch.tensor([[150], [100]])
    documents = torch.zeros(2, 150, dtype=torch.int64)
    places = torch.zeros(2, 150, dtype=torch.int64)
    for row, counts in enumerate(lengths):
        start = 0
        for number, count in enumerate(counts):
            documents[row, start : start + count] = number
            places[row, start : start + count] = torch.arange(count)
            start += count
        documents[row, start:] = len(counts)
    found = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=places + positions.offset(model.config),
        documents=Documents.read(documents, 2, 150),
    ).last_hidden_state
    for row, counts in enumerate(lengths):
        start = 0
        for count in counts:
            alone = model(input_ids=ids[row : row + 1, start : start + count]).last_hidden_state[0]
            assert measure(found[row, start : start + count], alone, torch.ones(count)) <= 1e-5
            start += count


@pytest.mark.parametrize("family", sorted(CONFIGS))
@torch.no_grad()
def test_a_pattern_equals_its_mask_given_to_transformers(family: str) -> None:
    """The oracle is transformers' own attention with an explicit 4-dimensional mask, layer by layer the same."""
    model = build(family)
    ids, mask = batch(family, "right")
    ids, mask = ids[:1], mask[:1]
    pattern = "window(6) | global(2)"
    allowed = torch.from_numpy(parse(pattern).mask(150).copy())
    found = plug(model, pattern)(input_ids=ids, attention_mask=mask).last_hidden_state
    plain = build(family)
    plain.set_attn_implementation("sdpa")
    if family == "modernbert":  # takes a mask for each kind of layer
        near = torch.from_numpy(parse("window(8)").mask(150).copy())
        masks: Any = {"full_attention": allowed[None, None], "sliding_attention": (allowed & near)[None, None]}
    else:
        masks = allowed[None, None]
    expected = plain(input_ids=ids, attention_mask=masks).last_hidden_state
    assert measure(found, expected, mask) <= 1e-5


@pytest.mark.parametrize("family", sorted(CONFIGS))
@torch.no_grad()
def test_schedules_count_layers(family: str) -> None:
    model = plug(build(family), "every(2, full, else_=window(4))")
    ids, mask = batch(family, "right")
    both = [model(input_ids=ids, attention_mask=mask).last_hidden_state for _ in range(2)]
    assert torch.equal(*both)
    other = plug(model, "every(3, full, else_=window(4))")(input_ids=ids, attention_mask=mask).last_hidden_state
    assert measure(other, both[0], mask) > 1e-2


@pytest.mark.parametrize("family", sorted(CONFIGS))
@torch.no_grad()
def test_edges_are_dropped_while_training_alone(family: str) -> None:
    model = plug(build(family), "window(20) | global(1)")
    without_attention_dropout(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids, mask = batch(family, "right")

    def states() -> torch.Tensor:
        found: torch.Tensor = model(input_ids=ids, attention_mask=mask).last_hidden_state
        return found

    whole = states()
    drop_edges(model, 0.3, seed=1)
    assert torch.equal(states(), whole)
    model.train()
    first, again = states(), states()
    assert torch.equal(first, again)
    assert measure(first, whole, mask) > 1e-2
    drop_edges(model, 0.3, seed=2)
    assert measure(states(), first, mask) > 1e-2
    drop_edges(model, None)
    assert measure(states(), whole, mask) <= 1e-5


@pytest.mark.parametrize("family", ["bert", "albert"])
@torch.no_grad()
def test_every_layer_drops_edges_of_its_own(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ALBERT too, whose layers are one module."""
    seen: list[str] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(str(arguments[3]))
        return attend(*arguments, **options)

    monkeypatch.setattr(import_module("louver.encoders.plug"), "attend", watched)
    model = plug(build(family), "window(9)").train()
    without_attention_dropout(model)
    for seed in (0, 1):
        drop_edges(model, 0.5, seed)
        ids, mask = batch(family, "right")
        model(input_ids=ids, attention_mask=mask)
    assert len(set(seen)) == len(seen) == 2 * SIZE["num_hidden_layers"]


@torch.no_grad()
def test_modernbert_keeps_or_gives_up_its_own_windows() -> None:
    model = plug(build("modernbert"), "full")
    assert [str(p) for p in layer_patterns(model)] == ["full", "full & window(8)", "full"]
    plug(model, "full", override=True)
    assert [str(p) for p in layer_patterns(model)] == ["full"] * 3


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_gradients_flow_through_checkpointing(family: str) -> None:
    model = plug(build(family), "window(4) | global(1)").train()
    without_attention_dropout(model)
    if model.supports_gradient_checkpointing:
        model.activation_checkpointing_enable()
    ids, mask = batch(family, "right")
    model(input_ids=ids, attention_mask=mask).last_hidden_state.sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert grads
    assert all(torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("family", sorted(set(CONFIGS) - {"albert"}))
@torch.no_grad()
def test_kept_layers_are_the_chosen_ones(family: str) -> None:
    model = build(family)
    ids, mask = batch(family, "right")
    states = plug(model, "full")(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    keep_layers(model, [0, 1])
    assert model.config.num_hidden_layers == 2
    found = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert measure(found[1], states[1], mask) <= 1e-6
    with pytest.raises(OptionError, match="layers must rise within"):
        keep_layers(model, [1, 5])


def test_kept_layers_keep_their_own_patterns() -> None:
    for written, chosen, expected in (
        ("every(3, full, else_=window(2))", [1, 2], "window(2)"),
        ("every(3, full, else_=window(2))", [0, 2], "every(2, full, else_=window(2))"),
        ("every(2, full, else_=window(2))", [1, 2], "every(2, window(2), else_=full)"),
        (
            "by_length({9: full, inf: every(3, full, else_=window(2))})",
            [1, 2],
            "by_length({9: full, inf: window(2)})",
        ),
    ):
        model = plug(transformers.BertModel(transformers.BertConfig(**SIZE)), written)
        keep_layers(model, chosen)
        assert model.config.louver_pattern == expected
    config = transformers.BertConfig(**{**SIZE, "num_hidden_layers": 4})
    model = plug(transformers.BertModel(config), "every(3, full, else_=window(2))")
    with pytest.raises(PatternError, match=r"which no every\(n, …\) says; choose other layers"):
        keep_layers(model, [1, 2, 3])


@torch.no_grad()
def test_masks_of_another_kind_are_refused() -> None:
    model = plug(build("bert"), "window(2)")
    with pytest.raises(OptionError, match=r"padding must be bool .*, got torch.float32; convert it"):
        model(input_ids=torch.ones(1, 4, dtype=torch.long), attention_mask=torch.ones(1, 4, 4))
    with pytest.raises(OptionError, match="attention_mask must have 2 or 4 dimensions, got 3"):
        _split_mask(torch.ones(1, 4, 4))


def test_albert_has_no_layers_to_choose() -> None:
    with pytest.raises(OptionError, match="albert shares its layers"):
        keep_layers(build("albert"), [0])


def test_unsupported_architectures_are_refused_by_name() -> None:
    config = transformers.DebertaV2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    model = transformers.AutoModel.from_config(config)
    with pytest.raises(ModelError, match="cannot put its attention under 'deberta-v2'; supported are: albert, bert"):
        plug(model, "full")
    with pytest.raises(ModelError, match="configured as a decoder"):
        plug(transformers.BertModel(transformers.BertConfig(**SIZE, is_decoder=True)), "full")
