"""Few weights beside a frozen encoder: they learn, they merge exactly, they come back from small files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.encoders.test_plug import build

import louver
from louver.bundle import Bundle
from louver.compression import DistillOptions, distill
from louver.encoders import FAMILIES, plug, read_bundle
from louver.encoders.adapters import KINDS, Adapted, AdapterOptions
from louver.encoders.words import masked_model
from louver.errors import BundleError, ModelError, OptionError
from louver.export import export
from louver.tasks import Columns, Splits, make_splits, read_examples
from louver.training import TrainingOptions, attach, finetune

TEXTS = ["rose fire", "sea sky moss " * 4, "leaf " * 200]


@pytest.fixture(scope="module")
def data(colours: Path) -> Splits:
    return make_splits(read_examples(colours, Columns()))


@pytest.fixture(scope="module")
def made(fresh_bundle: Bundle, data: Splits, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    home = tmp_path_factory.mktemp("adapters")
    options = TrainingOptions(epochs=2, max_length=64)
    return {
        kind: finetune(
            fresh_bundle, data, into=home / kind, options=options, adapter=AdapterOptions(kind=kind), progress=False
        )
        for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_bundle_is_an_ordinary_one(kind: str, made: dict[str, Bundle], fresh_bundle: Bundle) -> None:
    bundle = made[kind]
    numbers = bundle.card.history[-1].numbers
    assert numbers["adapter"]["merged_max_difference"] < 1e-5
    assert 0 < numbers["adapter"]["adapter_weights"] < 0.1 * numbers["adapter"]["all_weights"]
    assert numbers["validation"]["accuracy"]["value"] > 0.9
    reader, before = read_bundle(bundle), read_bundle(fresh_bundle)
    names = dict(reader.encoder.named_modules())
    assert not any("lora" in name or "ia3" in name or "base_layer" in name for name in names)
    if kind in ("bottleneck", "prompt"):  # what was frozen did not move
        for name, parameter in before.encoder.named_parameters():
            rows = len(parameter)
            assert torch.equal(reader.encoder.get_parameter(name)[:rows], parameter), name


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_and_the_encoder_give_the_same_bundle(
    kind: str, made: dict[str, Bundle], fresh_bundle: Bundle, tmp_path: Path
) -> None:
    """The head among them; and the directory alone is enough, wherever it is copied to."""
    small = shutil.copytree(made[kind].path / "adapter", tmp_path / "small")
    assert sum(f.stat().st_size for f in small.rglob("*")) < 0.3e6
    again = attach(fresh_bundle, small, into=tmp_path / "again")
    assert again.card.labels == made[kind].card.labels
    with louver.Predictor(made[kind]) as a, louver.Predictor(again) as b:
        assert np.abs(a.logits(TEXTS) - b.logits(TEXTS)).max() < 1e-4
        assert a.predict(TEXTS)[0].tokens_read == b.predict(TEXTS)[0].tokens_read == 2


@pytest.mark.parametrize("kind", ["bottleneck", "prompt"])
def test_what_stays_in_the_encoder_is_exported_too(kind: str, made: dict[str, Bundle], tmp_path: Path) -> None:
    graphs = export(made[kind], into=tmp_path / "onnx")
    with louver.Predictor(made[kind]) as here, louver.Predictor(graphs) as there:
        assert np.abs(here.logits(TEXTS) - there.logits(TEXTS)).max() < 1e-4


def test_a_soft_prompt_stands_before_every_text(made: dict[str, Bundle]) -> None:
    from louver.text import Tokenizer, Truncation, inputs

    bundle = made["prompt"]
    tokenizer = Tokenizer.open(bundle.path)
    assert tokenizer.specials == 2 + 16
    (found,) = inputs(tokenizer, ["rose " * 600], max_length=512, truncation=Truncation.HEAD)
    assert found.pieces[0][:18].tolist() == [101, *range(30522, 30538), found.pieces[0][17]]
    assert (len(found.pieces[0]), found.read) == (512, 512 - 18)  # the prompt is counted in the length
    assert read_bundle(bundle).encoder.config.vocab_size == 30538


def test_a_student_keeps_its_teachers_bottleneck(made: dict[str, Bundle], data: Splits, tmp_path: Path) -> None:
    options = DistillOptions(layers=1, epochs=1, max_length=64)
    student = distill(made["bottleneck"], data, into=tmp_path / "student", options=options, progress=False)
    names = [name for name, _ in read_bundle(student).encoder.named_parameters() if "bottleneck" in name]
    assert len(names) == 4


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_takes_every_kind(family: str, kind: str) -> None:
    """With random weights in the adapter, so that a merge that forgets one is seen; sparse."""
    torch.manual_seed(0)
    model = plug(build(family), "window(4) | global(1)").eval()
    adapted = Adapted(model, AdapterOptions(kind=kind, rank=2, size=4, tokens=3, dropout=0.0))
    assert adapted.trainable
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    ids = torch.randint(5, 90, (2, 24))
    ids[:, 1:4] = torch.tensor(adapted.prefix or [5, 6, 7])
    mask = torch.ones_like(ids)
    mask[1, 15:] = 0
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).last_hidden_state
        after = adapted.merge()(input_ids=ids, attention_mask=mask).last_hidden_state
    real = mask.bool()
    assert float((before - after)[real].abs().max() / (1 + before[real].abs().max())) < 1e-5


def test_peft_reads_the_small_files(made: dict[str, Bundle], fresh_bundle: Bundle) -> None:
    from peft import PeftModel

    encoder = read_bundle(fresh_bundle).encoder
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):  # peft's own
        wrapped = PeftModel.from_pretrained(encoder, str(made["lora"].path / "adapter"))
    states = read_bundle(made["lora"]).encoder
    ids = torch.tensor([[101, 3000, 3001, 102]])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        ours = states(input_ids=ids, attention_mask=mask).last_hidden_state
        theirs = wrapped(input_ids=ids, attention_mask=mask).last_hidden_state
    assert float((ours - theirs).abs().max()) < 1e-5


def test_another_encoder_and_damaged_files_are_refused(
    made: dict[str, Bundle], long_bundle: Bundle, fresh_bundle: Bundle, tmp_path: Path
) -> None:
    small = made["lora"].path / "adapter"
    with pytest.raises(BundleError, match=r"was trained on the bundle [0-9a-f]{12}…, and .* is [0-9a-f]+…; give"):
        attach(long_bundle, small, into=tmp_path / "b")
    with pytest.raises(BundleError, match=r"holds no adapter; give the directory .adapter. of a bundle"):
        attach(long_bundle, tmp_path, into=tmp_path / "b")
    for damage, says in [
        (lambda d: (d / "head.safetensors").unlink(), "do not fit"),
        (lambda d: (d / "head.safetensors").write_bytes(b"nothing"), "do not fit"),
        (lambda d: (d / "louver_adapter.json").write_text("{"), "is no description of an adapter"),
        (lambda d: (d / "adapter_model.safetensors").unlink(), "lacks adapter_model.safetensors; copy it again"),
        (lambda d: (d / "adapter_model.safetensors").write_bytes(b"nothing"), "do not fit"),
    ]:
        broken = tmp_path / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(small, broken)
        damage(broken)  # type: ignore[no-untyped-call]
        with pytest.raises(BundleError, match=says):
            attach(fresh_bundle, broken, into=tmp_path / "b")
    assert json.loads((small / "louver_adapter.json").read_text("utf8"))["card"]["labels"] == ["blue", "green", "red"]
    assert load_file(small / "head.safetensors")["bias"].shape == (3,)


@pytest.mark.parametrize("kind", ["bottleneck", "prompt"])
def test_a_second_one_of_its_kind_is_refused(kind: str, made: dict[str, Bundle], data: Splits, tmp_path: Path) -> None:
    adapter = AdapterOptions.model_validate({"kind": kind})
    with pytest.raises(OptionError, match=f"has a {kind} adapter already; take another kind, or an earlier bundle"):
        finetune(made[kind], data, into=tmp_path / "b", adapter=adapter, progress=False)


def test_what_adapters_do_not_go_with(
    made: dict[str, Bundle], fresh_bundle: Bundle, data: Splits, tmp_path: Path
) -> None:
    options = TrainingOptions(sharding="fsdp")
    with pytest.raises(OptionError, match="an adapter wants every process to hold all weights; leave sharding 'fsdp'"):
        finetune(fresh_bundle, data, into=tmp_path / "b", options=options, adapter=AdapterOptions(), progress=False)
    with pytest.raises(ModelError, match="has a bottleneck adapter, which no word head knows; give the bundle"):
        masked_model(made["bottleneck"])
    with pytest.raises(OptionError, match="unknown pooling 'none'; expected one of: cls, mean"):
        finetune(fresh_bundle, data, into=tmp_path / "b", pooling="none", progress=False)
