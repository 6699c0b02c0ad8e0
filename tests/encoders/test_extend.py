from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tests.conftest import large_weights
from tests.encoders.test_plug import CONFIGS, batch, build, measure

import louver
from louver.bundle import Bundle
from louver.encoders import extend, plug, positions
from louver.encoders.load import license_of
from louver.encoders.pooling import pool
from louver.errors import BundleError, ModelError, OptionError


def test_short_texts_keep_their_answers(long_bundle: Bundle) -> None:
    numbers = long_bundle.card.history[-1].numbers["short_text_max_difference"]
    assert set(numbers) == {"alone", "beside_a_longer_text"}
    assert max(numbers.values()) <= 1e-5
    assert long_bundle.card.pattern == "by_length({64: full, inf: window(8) | global(1)})"
    assert (long_bundle.card.original_length, long_bundle.card.max_length) == (64, 2048)


@torch.no_grad()
def test_extended_states_equal_the_checkpoint(tiny: Path, long_bundle: Bundle) -> None:
    """An oracle of its own: transformers on the untouched checkpoint."""
    before = transformers.AutoModel.from_pretrained(tiny, add_pooling_layer=False).eval()
    after, _ = louver.load(long_bundle.path)
    ids = torch.randint(1000, 2000, (2, 64))
    mask = torch.ones_like(ids)
    mask[1, 40:] = 0
    expected = before(input_ids=ids, attention_mask=mask).last_hidden_state
    assert measure(after(input_ids=ids, attention_mask=mask).last_hidden_state, expected, mask) <= 1e-5
    longer = torch.randint(1000, 2000, (3, 90))
    longer[:2, :64] = ids
    longer_mask = torch.ones_like(longer)
    longer_mask[0, 64:] = 0
    longer_mask[1, 40:] = 0
    found = after(input_ids=longer, attention_mask=longer_mask).last_hidden_state[:2, :64]
    assert measure(found, expected, mask) <= 1e-5


@torch.no_grad()
def test_tables_are_tiled_stretched_or_sines() -> None:
    def table(how: str) -> torch.Tensor:
        model = build("bert")
        positions.extend(model, 500, how)
        found: torch.Tensor = model.embeddings.position_embeddings.weight
        assert found.shape == (512, 32)
        return found

    old = build("bert").embeddings.position_embeddings.weight
    tiled = table("tile")
    assert torch.equal(tiled, table("auto"))
    assert torch.equal(tiled, torch.cat([old, old, old[:112]]))
    stretched = table("interpolate")
    assert torch.allclose(stretched[[0, -1]], old[[0, -1]], atol=1e-5)
    place = 300 * 199 / 511  # row 300 of 512 lies here among the old 200
    low = int(place)
    expected = old[low] + (place - low) * (old[low + 1] - old[low])
    assert torch.allclose(stretched[300], expected, atol=1e-4)
    sines = table("sinusoidal")
    assert torch.allclose(
        positions.sinusoidal(5, 4)[3],
        torch.tensor([3.0, 3.0, 0.03, 0.03])
        .sin()
        .where(torch.tensor([True, False, True, False]), torch.tensor([3.0, 3.0, 0.03, 0.03]).cos()),
    )
    assert sines.std() == pytest.approx(float(old.std()), rel=0.2)


@torch.no_grad()
@pytest.mark.parametrize("how", ["ntk", "yarn"])
def test_rotary_frequencies_scale_and_survive_a_reload(how: str, tmp_path: Path) -> None:
    model = build("modernbert")
    local = model.rotary_emb.sliding_attention_inv_freq.clone()
    whole = model.rotary_emb.full_attention_inv_freq.clone()
    positions.extend(model, 1600, how)
    length = positions.length(model.config)
    found = model.rotary_emb.full_attention_inv_freq
    assert torch.equal(model.rotary_emb.sliding_attention_inv_freq, local)  # its window holds no new distance
    assert found[0] == pytest.approx(float(whole[0]), rel=1e-5)  # the fastest stays
    assert found[-1] == pytest.approx(
        float(whole[-1]) * 200 / length, rel=1e-3
    )  # the slowest turns over the new length
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path).eval()
    ids = torch.randint(5, 200, (1, 700))
    assert torch.equal(again(input_ids=ids).last_hidden_state, model(input_ids=ids).last_hidden_state)


def test_yarn_goes_by_what_the_model_learned_however_often_it_is_extended() -> None:
    once, twice = build("modernbert"), build("modernbert")
    positions.extend(once, 1600, "yarn")
    positions.extend(twice, 600, "yarn")
    positions.extend(twice, 1600, "yarn")
    assert twice.config.rope_parameters == once.config.rope_parameters
    assert torch.equal(twice.rotary_emb.full_attention_inv_freq, once.rotary_emb.full_attention_inv_freq)


def test_ways_that_change_short_texts_want_to_be_told(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r'answers to short texts would change .* accept it with short="same"'):
        extend(tiny, into=tmp_path / "a", max_length=128, positions="interpolate")
    bundle = extend(tiny, into=tmp_path / "a", max_length=128, positions="interpolate", short="same")
    assert bundle.card.history[-1].settings["positions"] == "interpolate"
    with pytest.raises(OptionError, match="unknown way to extend positions 'stretch'"):
        extend(tiny, into=tmp_path / "b", max_length=128, positions="stretch")
    with pytest.raises(OptionError, match="bert has a position table, got 'yarn'; choose one of: auto, tile"):
        extend(tiny, into=tmp_path / "b", max_length=128, positions="yarn")
    with pytest.raises(OptionError, match="modernbert has rotary positions, got 'tile'; choose one of: auto, ntk"):
        positions.extend(build("modernbert"), 500, "tile")


@pytest.mark.parametrize("family", sorted(CONFIGS))
@torch.no_grad()
def test_positions_of_every_family(family: str) -> None:
    model = build(family)
    ids, mask = batch(family, "right")
    old = positions.length(model.config)
    expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    positions.extend(model, 500)  # whole blocks: 512
    assert positions.length(model.config) == 512
    assert measure(model(input_ids=ids, attention_mask=mask).last_hidden_state, expected, mask) <= 1e-6
    longer = torch.randint(5, 200, (1, 512))
    assert torch.isfinite(model(input_ids=longer, attention_mask=torch.ones_like(longer)).last_hidden_state).all()
    if family != "modernbert":
        table = model.embeddings.position_embeddings.weight
        first = positions.offset(model.config)
        assert torch.equal(table[first + old], table[first])
        assert len(table) == 512 + first


RELOAD = """
import sys, torch, transformers
transformers.AutoTokenizer.from_pretrained = classmethod(lambda cls, *a, **k: None)  # these checkpoints have none
import louver
for family in sys.argv[2:]:
    model, _ = louver.load(f"{sys.argv[1]}/{family}")
    assert model.config.louver_pattern == "window(4) | global(1)"
    ids, mask, expected = torch.load(f"{sys.argv[1]}/{family}.case")
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    gap = (found - expected)[mask.bool()].abs().max() / (1 + expected.abs().max())
    assert gap <= 1e-5, (family, gap)
"""


@torch.no_grad()
def test_saved_and_loaded_in_a_fresh_process(tmp_path: Path) -> None:
    for family in CONFIGS:
        model = plug(build(family), "window(4) | global(1)")
        model.save_pretrained(tmp_path / family)
        ids, mask = batch(family, "right")
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
        torch.save((ids, mask, expected), tmp_path / f"{family}.case")
    command = [sys.executable, "-c", RELOAD, str(tmp_path), *CONFIGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_checkpoint_with_a_head_keeps_it(tmp_path: Path, tiny: Path) -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(tiny)
    config.id2label = {0: "no", 1: "yes", 2: "maybe"}
    config.label2id = {"no": 0, "yes": 1, "maybe": 2}
    model = transformers.BertForSequenceClassification(config).eval()
    large_weights(model)
    model.save_pretrained(tmp_path / "head")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, tmp_path / "head" / name)
    bundle = louver.extend(tmp_path / "head", into=tmp_path / "long", max_length=256, pattern="window(8) | global(1)")
    assert (bundle.card.task, bundle.card.kind, bundle.card.pooling) == ("classify", "single", "own")
    assert bundle.card.labels == ["no", "yes", "maybe"]
    text = "the red rose is in the green sea"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "head")
    with torch.no_grad():
        expected = model(**tokenizer(text, return_tensors="pt")).logits[0]
    with louver.Predictor(bundle) as predictor:
        found = torch.from_numpy(predictor.logits([text])[0])
        assert float((found - expected).abs().max()) < 1e-5
        assert predictor.predict(["word " * 200])[0].label in bundle.card.labels


def test_same_pattern_in_short_texts_on_request(tiny: Path, tmp_path: Path) -> None:
    bundle = louver.extend(tiny, into=tmp_path / "b", max_length=128, pattern="window(2)", short="same")
    assert bundle.card.pattern == "window(2)"


def test_load_gives_exactly_this_pattern(tiny: Path) -> None:
    model, tokenizer = louver.load(tiny, pattern="window(8) | global(1)", max_length=300)
    assert model.config.louver_pattern == "window(8) | global(1)"
    assert tokenizer.model_max_length == 300
    assert positions.length(model.config) == 384


def test_refusals(tiny: Path, tmp_path: Path, long_bundle: Bundle) -> None:
    with pytest.raises(OptionError, match="reads 64 tokens already, got max_length=32"):
        louver.extend(tiny, into=tmp_path / "a", max_length=32)
    with pytest.raises(BundleError, match="exists; choose another directory"):
        louver.extend(tiny, into=long_bundle.path, max_length=128)
    with pytest.raises(ModelError, match="cannot load"):
        louver.load(tmp_path / "nothing")
    assert not (tmp_path / "a").exists()


def test_pickled_weights_are_refused(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match=r"has its weights as a pickle \(pytorch_model.bin\)"):
        louver.load(tmp_path / "pickled")


def test_unsupported_architecture_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2", "hidden_size": 32}), "utf8")
    with pytest.raises(ModelError, match="cannot put its attention under 'deberta-v2'"):
        louver.extend(tmp_path, into=tmp_path / "x")


def test_pooling() -> None:
    states = torch.arange(12.0).reshape(1, 3, 4)
    mask = torch.tensor([[1, 1, 0]])
    assert pool(states, mask, "cls").tolist() == [[0, 1, 2, 3]]
    assert pool(states, mask, "mean").tolist() == [[2, 3, 4, 5]]
    with pytest.raises(OptionError, match="unknown pooling 'max'"):
        pool(states, mask, "max")


def test_the_licence_goes_with_the_weights(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny, copy)
    for content, expected in (("---\nlicense: mit\n---\n", "mit"), ("---\nlicense: [\n---\n", None), ("no head", None)):
        (copy / "README.md").write_text(content)
        assert license_of(copy) == expected
    assert license_of(tiny) is None
    (copy / "README.md").write_text("---\nlicense: mit\n---\n")
    assert extend(copy, into=tmp_path / "b", max_length=128).card.license == "mit"


def test_heads_are_kept_left_or_missing(tiny: Path, tmp_path: Path) -> None:
    """One output without a type is a number, as transformers reads it."""
    for labels, kind in ((1, "regression"), (3, "single")):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=labels)
        model.save_pretrained(tmp_path / f"model{labels}")
        for file in tiny.glob("tokenizer*"):
            shutil.copy(file, tmp_path / f"model{labels}")
        card = extend(tmp_path / f"model{labels}", into=tmp_path / f"own{labels}", max_length=128).card
        assert (card.task, card.kind, card.pooling) == ("classify", kind, "own")
        assert len(card.labels) == (labels if kind == "single" else 0)
        left = extend(tmp_path / f"model{labels}", into=tmp_path / f"cls{labels}", max_length=128, pooling="cls")
        assert (left.card.task, left.card.kind, left.card.pooling, left.card.labels) == ("embed", None, "cls", [])
        with louver.Predictor(tmp_path / f"own{labels}") as predictor:
            (found,) = predictor.predict(["rose"])
        assert (found.value is not None) == (kind == "regression")
    with pytest.raises(OptionError, match="has no classification head of its own"):
        extend(tiny, into=tmp_path / "x", max_length=128, pooling="own")


def test_a_checkpoint_of_another_architecture_is_refused(tiny: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny, tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "layer.0" not in k}, tmp_path / "m" / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks the weights .*; it was not saved by this architecture"):
        extend(tmp_path / "m", into=tmp_path / "b", max_length=128)


def test_what_was_pretrained_at_its_own_length_can_be_extended(tiny: Path, tmp_path: Path) -> None:
    """With its masked-word head, so that the longer one can be trained on; and its history goes on."""
    from louver.encoders.words import Words
    from louver.training import PretrainingOptions, pretrain

    short = louver.extend(tiny, into=tmp_path / "short", max_length=64, pattern="full", prompt="query: ")
    options = PretrainingOptions(epochs=1)
    texts = ["the red rose " * i for i in range(1, 15)]
    trained = pretrain(short, texts, into=tmp_path / "trained", options=options, progress=False)
    long = louver.extend(trained.path, into=tmp_path / "long", max_length=256, pattern="window(8) | global(1)")
    assert [record.step for record in long.card.history] == ["extend", "pretrain", "extend"]
    assert long.card.history[-1].parents == [trained.digest]
    assert (long.card.prompt, long.card.original_length) == ("query: ", 64)
    ours, theirs = (Words(one).fill(["the [MASK] rose"], top=3)[0][0] for one in (trained, long))
    assert [guess.word for guess in ours] == [guess.word for guess in theirs]
    with pytest.raises(ModelError, match="is a louver bundle that was extended, exported or taught a task; extend the"):
        louver.extend(long.path, into=tmp_path / "longer", max_length=512)


def test_cleaning_goes_on_in_what_is_made_of_a_bundle(tiny: Path, colours: Path, tmp_path: Path) -> None:
    from louver.tasks import Columns, make_splits, read_examples
    from louver.training import TrainingOptions, finetune

    made = louver.extend(tiny, into=tmp_path / "b", max_length=128, cleaning="light")
    data = make_splits(read_examples(colours, Columns()))
    options = TrainingOptions(epochs=0, max_length=64)
    tuned = finetune(made, data, into=tmp_path / "t", options=options, progress=False)
    for bundle in (made, tuned):
        with louver.Predictor(bundle) as predictor:
            wide, plain = predictor.logits(["ｒｅｄ　ｒｏｓｅ", "red rose"])
        assert abs(wide - plain).max() < 1e-5
    with pytest.raises(OptionError, match="unknown cleaning 'lihgt'; did you mean 'light'"):
        louver.extend(tiny, into=tmp_path / "c", cleaning="lihgt")
