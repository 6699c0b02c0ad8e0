"""Few new weights beside a frozen encoder: LoRA and IA3 by peft, bottleneck adapters, soft prompts.

LoRA (Hu et al. 2022) and IA3 (Liu et al. 2022) are merged into the encoder when training ends. So is a soft prompt
(p-tuning, Liu et al. 2021): its vectors become rows of the embedding table, and the tokenizer puts their ids behind the
first special, so that positions, segments and length limits are right by themselves. A bottleneck (Houlsby et al. 2019;
one a layer, Pfeiffer et al. 2021) is not linear and stays. A merged bundle is an ordinary one; the small files lie
beside it, and `attach` gives the same bundle from them and the encoder that they were trained on.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from louver.encoders.load import quiet
from louver.encoders.plug import layers_of
from louver.errors import BundleError, need_extra

Kind = Literal["lora", "ia3", "bottleneck", "prompt"]
KINDS: tuple[Kind, ...] = ("lora", "ia3", "bottleneck", "prompt")
FILE = "louver_adapter.json"
WEIGHTS = "louver_adapter.safetensors"
LEARNING_RATES: dict[str, float] = {"lora": 5e-4, "ia3": 5e-3, "bottleneck": 5e-4, "prompt": 5e-3}
"""New weights begin at nothing and want larger steps than those of a pretrained encoder."""
_KEYS_AND_VALUES = ("key", "value", "k_lin", "v_lin", "Wqkv")
_INNER = ("output.dense", "lin2", "ffn_output", "mlp.Wo")


class AdapterOptions(BaseModel):
    """Which weights are added, and how many."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Kind = "lora"
    rank: int = Field(8, ge=1)
    """Of LoRA's matrices, on every linear layer."""
    alpha: float = Field(16.0, gt=0)
    """LoRA's output counts alpha / rank."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Before LoRA's matrices, in training."""
    size: int = Field(48, ge=1)
    """Numbers in the middle of a bottleneck."""
    tokens: int = Field(16, ge=1)
    """Vectors of a soft prompt."""


class Adapted:
    """An encoder with new weights in it; all others are frozen.

    Args:
        encoder: changed in place.
        options: which weights.
        trained: small files to take the weights from, for use instead of training.
    """

    def __init__(self, encoder: PreTrainedModel, options: AdapterOptions, trained: Path | None = None) -> None:
        self.encoder = encoder
        self.options = options
        self.words = int(encoder.config.vocab_size)
        encoder.requires_grad_(False)
        match options.kind:
            case "lora" | "ia3":
                self._wrap(trained)
            case "bottleneck":
                add_bottlenecks(encoder, options.size)
                if trained is not None:
                    encoder.load_state_dict(load_file(trained / WEIGHTS), strict=False)
            case "prompt" if trained is None:
                encoder.set_input_embeddings(_WithPrompt(encoder.get_input_embeddings(), options.tokens))
            case "prompt":
                table = encoder.get_input_embeddings()
                assert isinstance(table, nn.Embedding)
                encoder.set_input_embeddings(_longer(table, load_file(trained / WEIGHTS)["prompt"]))

    @property
    def prefix(self) -> tuple[int, ...]:
        """Ids that the tokenizer puts before every text."""
        count = self.options.tokens if self.options.kind == "prompt" else 0
        return tuple(range(self.words, self.words + count))

    @property
    def trainable(self) -> int:
        """Number of new weights."""
        return sum(p.numel() for p in self.encoder.parameters() if p.requires_grad)

    def save(self, directory: Path) -> None:
        """Write the small files: peft's own of LoRA and IA3, so that peft reads them too."""
        directory.mkdir(parents=True, exist_ok=True)
        if self.options.kind in ("lora", "ia3"):
            with quiet():
                self._peft.save_pretrained(directory)
            (directory / "README.md").unlink(missing_ok=True)  # peft's empty model card
            return
        table = self.encoder.get_input_embeddings()
        if isinstance(table, _WithPrompt):  # the vectors alone: what made them is many times as large
            new = {"prompt": table.vectors().detach().cpu().contiguous()}
        else:
            learned = ((name, p) for name, p in self.encoder.named_parameters() if p.requires_grad)
            new = {name: p.detach().cpu().contiguous() for name, p in learned}
        save_file(new, directory / WEIGHTS)

    def merge(self) -> PreTrainedModel:
        """Return an ordinary encoder that does the same; a bottleneck stays in it."""
        match self.options.kind:
            case "lora" | "ia3":
                merged: PreTrainedModel = self._peft.merge_and_unload()
                for name in ("peft_config", "_hf_peft_config_loaded"):
                    merged.__dict__.pop(name, None)
            case "prompt":
                merged = self.encoder
                wrapped = merged.get_input_embeddings()
                if isinstance(wrapped, _WithPrompt):
                    merged.set_input_embeddings(_longer(wrapped.table, wrapped.vectors()))
                merged.config.vocab_size = self.words + self.options.tokens
            case _:
                merged = self.encoder
        return merged.requires_grad_(True).eval()

    def _wrap(self, trained: Path | None) -> None:
        """Let peft put its layers into the encoder, in place."""
        need_extra("train", "peft")
        from peft import IA3Config, LoraConfig, PeftModel, get_peft_model

        linear = _linear_names(self.encoder)
        with quiet(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")  # peft asks by the old name
            if trained is not None:
                self._peft = PeftModel.from_pretrained(self.encoder, str(trained))
            elif self.options.kind == "lora":
                rank, alpha, dropout = self.options.rank, self.options.alpha, self.options.dropout
                self._peft = get_peft_model(
                    self.encoder, LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=linear)
                )
            else:
                inner = [name for name in linear if name.endswith(_INNER) and "attention" not in name]
                outer = [name for name in linear if name.endswith(_KEYS_AND_VALUES)]
                self._peft = get_peft_model(
                    self.encoder, IA3Config(target_modules=outer + inner, feedforward_modules=inner)
                )


class Bottleneck(nn.Module):
    """x + up(gelu(down(x))), which begins as x.

    Args:
        width: of the states.
        size: numbers in the middle.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, size)
        self.up = nn.Linear(size, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Change states (batch, tokens, width)."""
        found: Tensor = states + self.up(nn.functional.gelu(self.down(states)))
        return found


def add_bottlenecks(encoder: PreTrainedModel, size: int) -> None:
    """Put a bottleneck behind every layer, in place."""
    for layer in layers_of(encoder):
        layer.add_module("bottleneck", Bottleneck(encoder.config.hidden_size, size))
        layer.register_forward_hook(_through_bottleneck)


def _through_bottleneck(layer: nn.Module, _: Any, found: Any) -> Any:
    bottleneck = layer.get_submodule("bottleneck")
    return (bottleneck(found[0]), *found[1:]) if isinstance(found, tuple) else bottleneck(found)


class _WithPrompt(nn.Module):
    """An embedding table whose ids beyond its end are a prompt's, made by peft's prompt encoder.

    Args:
        table: of the encoder.
        tokens: vectors of the prompt.
    """

    def __init__(self, table: nn.Module, tokens: int) -> None:
        super().__init__()
        need_extra("train", "peft")
        from peft import PromptEncoder, PromptEncoderConfig

        assert isinstance(table, nn.Embedding)
        width = table.embedding_dim
        self.table = table
        self.prompt = PromptEncoder(
            PromptEncoderConfig(
                num_virtual_tokens=tokens,
                token_dim=width,
                num_transformer_submodules=1,
                encoder_hidden_size=width,
            )
        )
        with torch.no_grad():  # begin where words are: the encoder knows nothing of vectors ten times as long
            self.prompt.mlp_head[-1].weight.mul_(table.weight.std() / 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Return (batch, tokens, width)."""
        words = self.table.num_embeddings
        ours = ids >= words
        vectors = self.vectors()[(ids - words).clamp(min=0)]
        found: Tensor = torch.where(ours[..., None], vectors, self.table(ids.clamp(max=words - 1)))
        return found

    def vectors(self) -> Tensor:
        """Return the prompt, (tokens, width)."""
        places = torch.arange(self.prompt.total_virtual_tokens, device=self.table.weight.device)
        found: Tensor = self.prompt(places)
        return found


@torch.no_grad()
def _longer(table: nn.Embedding, more: Tensor) -> nn.Embedding:
    """Return a table with more rows behind its own."""
    rows = torch.cat([table.weight, more.to(table.weight)])
    found = nn.Embedding(len(rows), rows.shape[1], padding_idx=table.padding_idx)
    found.weight.copy_(rows)
    return found


def _linear_names(encoder: PreTrainedModel) -> list[str]:
    """Return the full names of all linear maps inside an encoder's layers."""
    inside = {id(module) for layer in layers_of(encoder) for module in layer.modules()}
    return [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear) and id(module) in inside]


def write_description(directory: Path, options: AdapterOptions, base: str, card: dict[str, Any]) -> None:
    """Write what the small files are, and which bundle they were trained on.

    Args:
        directory: of the small files.
        options: of the adapter.
        base: digest of the bundle that was trained.
        card: what the task needs of the new bundle's card.
    """
    described = {"adapter": options.model_dump(), "base": base, "card": card}
    (directory / FILE).write_text(json.dumps(described, indent=1), "utf8")


def read_description(directory: str | Path) -> tuple[AdapterOptions, str, dict[str, Any]]:
    """Read what `write_description` wrote.

    Raises:
        BundleError: if the directory holds no adapter.
    """
    file = Path(directory) / FILE
    if not file.is_file():
        raise BundleError(f"{directory} holds no adapter; give the directory 'adapter' of a bundle trained with one")
    try:
        found = json.loads(file.read_text("utf8"))
        options, base, card = AdapterOptions(**found["adapter"]), str(found["base"]), dict(found["card"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file} is no description of an adapter; copy it again from the bundle") from error
    weights = "adapter_model.safetensors" if options.kind in ("lora", "ia3") else WEIGHTS
    if not (file.parent / weights).is_file():  # peft would take the directory for a name on the hub
        raise BundleError(f"{directory} lacks {weights}; copy it again from the bundle")
    return options, base, card
