"""`recommend`: which pattern to give a model that is to read longer texts, and why.

The starting point is the field's rule: full attention for what the model reads already, blocks up to 2,048 tokens, a
window with a global token beyond. It was held against accuracy and time on a real task (docs/results/attention.md);
what a pattern saves is then predicted from this machine's rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig

from louver.attention import cost
from louver.attention.choose import predicted
from louver.encoders import positions
from louver.encoders.plug import family_of
from louver.errors import ModelError, OptionError
from louver.patterns import Full, Pattern, parse

_BLOCKS, _WINDOW = "blocks(64) | global(1)", "window(128) | global(1)"
_BLOCKS_UP_TO = 2048

_WORTH = 1.2
"""Times as fast as dense that attention must be, to be worth reading less."""


@dataclass(frozen=True)
class Recommendation:
    """A pattern to begin with.

    Attributes:
        pattern: for `extend` and `load`; `extend` keeps full attention for short texts by itself.
        reason: why, in one line.
        attention_speedup: predicted, over dense attention, of a text of that length; None where nothing was measured.
    """

    pattern: Pattern
    reason: str
    attention_speedup: float | None


def recommend(
    model: str | Path, length: int = 4096, *, device: str = "cpu", trust_remote_code: bool = False
) -> Recommendation:
    """Recommend a pattern; measure it on your own task before you believe it.

    Args:
        model: a transformers directory or a hub name; only its config is read.
        length: tokens of the longest texts, specials included.
        device: where it will run; savings are predicted for "cpu" alone.
        trust_remote_code: run code from the checkpoint; off unless you have read it.

    Raises:
        ModelError: if the architecture is not supported.
        OptionError: if the length is not positive.
    """
    if length < 1:
        raise OptionError(f"length must be positive, got {length}; 4096 is a common choice")
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise OptionError(f"unknown device {device!r}; give cpu or cuda") from error
    try:
        config = AutoConfig.from_pretrained(str(model), trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"cannot read the config of {str(model)!r}; give a transformers directory or a hub name"
        ) from error
    family_of(config)
    own = positions.length(config)
    if length <= own:
        return Recommendation(Full(), f"the model reads {own} tokens as it is", 1.0)
    pattern = parse(_BLOCKS if length <= _BLOCKS_UP_TO else _WINDOW)
    if kind != "cpu":
        return Recommendation(pattern, "by the rule of the field; nothing was measured on this device", None)
    heads = int(config.num_attention_heads)
    sparse, dense = predicted(pattern, length, heads, int(config.hidden_size) // heads, cost.rates())
    if dense < _WORTH * sparse:
        return Recommendation(Full(), f"at {length} tokens a pattern would save less than it leaves out", 1.0)
    reason = f"{heads} heads: about {sparse:.1f} ms a layer and text against {dense:.1f}"
    return Recommendation(pattern, reason, round(dense / sparse, 2))
