"""flash-attn's kernel (Dao 2023) where its package is installed: windows and causal windows on CUDA, in 16 bits.

Shape letters: B batch, H heads, T tokens, D numbers a head.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from louver.attention.request import Backend, Request
from louver.patterns import Causal, Full, Intersection, Pattern, Window

_EVERYTHING = (-1, -1)


def window_of(pattern: Pattern) -> tuple[int, int] | None:
    """Return the (left, right) that flash-attn calls a pattern by, -1 for no limit; None if it cannot be said so."""
    if isinstance(pattern, Full):
        return _EVERYTHING
    if isinstance(pattern, Causal):
        return -1, 0
    if isinstance(pattern, Window) and pattern.dilation == 1:
        return pattern.sides
    if isinstance(pattern, Intersection):
        sides = [window_of(part) for part in pattern.members]
        known = [side for side in sides if side is not None]
        if len(known) == len(sides):
            left, right = (min((s[i] for s in known if s[i] >= 0), default=-1) for i in (0, 1))
            return left, right
    return None


def refusal(request: Request) -> str | None:
    """Say why flash-attn cannot compute this, if it cannot."""
    if find_spec("flash_attn") is None:
        return "needs the package flash-attn"
    if request.q_BHTD.device.type != "cuda" or request.q_BHTD.dtype not in (torch.float16, torch.bfloat16):
        return f"computes float16 and bfloat16 on CUDA, not {request.q_BHTD.dtype} on {request.q_BHTD.device.type}"
    if request.q_BHTD.shape[-1] > 256:
        return f"takes head dims up to 256, not {request.q_BHTD.shape[-1]}"
    if request.padding is not None and not request.padding.whole:
        return "takes no padding"
    if window_of(request.pattern) is None:
        return f"knows windows and causal windows, not {request.pattern}"
    return None


def compute(request: Request) -> tuple[Tensor, None]:
    """Call the kernel with the window."""
    from flash_attn import flash_attn_func

    window = window_of(request.pattern)
    assert window is not None
    out_BTHD: Tensor = flash_attn_func(
        *(x.transpose(1, 2) for x in (request.q_BHTD, request.k_BHSD, request.v_BHSD)),
        dropout_p=request.dropout,
        softmax_scale=request.scale,
        window_size=window,
    )
    return out_BTHD.transpose(1, 2), None


BACKEND = Backend(compute, any_mask=False, documents=False, weights=False, refusal=refusal)
