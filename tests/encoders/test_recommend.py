from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import louver
from louver.attention import cost
from louver.encoders import recommend
from louver.errors import ModelError, OptionError


@pytest.fixture(autouse=True)
def _known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "rates", lambda: cost.DEFAULT)


def test_the_rule_by_length(minilm_l3: Path) -> None:
    found = {length: str(recommend(minilm_l3, length).pattern) for length in (100, 512, 540, 1024, 2048, 2049, 16_384)}
    assert found == {
        100: "full",
        512: "full",
        540: "full",  # a pattern would save too little
        1024: "blocks(64) | global(1)",
        2048: "blocks(64) | global(1)",
        2049: "window(128) | global(1)",
        16_384: "window(128) | global(1)",
    }


def test_reasons_and_savings(minilm_l3: Path) -> None:
    assert recommend(minilm_l3, 512).reason == "the model reads 512 tokens as it is"
    long = recommend(minilm_l3, 4096)
    assert long.attention_speedup is not None
    assert 4 < long.attention_speedup < 16
    assert "12 heads: about" in long.reason
    assert recommend(minilm_l3, 4096, device="cuda").attention_speedup is None
    assert louver.recommend is recommend


def test_what_it_cannot_recommend_for(minilm_l3: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="length must be positive, got 0"):
        recommend(minilm_l3, 0)
    with pytest.raises(OptionError, match="unknown device 'banana'; give cpu or cuda"):
        recommend(minilm_l3, 4096, device="banana")
    with pytest.raises(ModelError, match="cannot read the config of"):
        recommend(tmp_path)
    transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="louver cannot put its attention under 'gpt2'"):
        recommend(tmp_path)


def test_roberta_positions_begin_after_the_padding(tmp_path: Path) -> None:
    transformers.RobertaConfig(max_position_embeddings=514, pad_token_id=1).save_pretrained(tmp_path)
    assert recommend(tmp_path, 512).reason == "the model reads 512 tokens as it is"
