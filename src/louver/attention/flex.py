"""FlexAttention (Dong et al. 2024) with a block mask from the pattern's layout: no pair is looked at to build it.

CUDA: forward and backward; CPU: inference (torch generates C++, so a compiler must be there, and the first call of a
pattern takes seconds). Blocks that are allowed throughout skip the mask.

Shape letters: B batch, H heads, T tokens, D numbers a head; N query blocks, W key blocks of one.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from louver.attention.request import Backend, Request
from louver.patterns import Full, Pattern, is_length_free

BLOCK = 128
"""Tokens a block, as FlexAttention's kernels are tuned for."""

_KERNELS = 512
"""Kernels that one process may compile: one for each pattern, dtype and head dim, and two for its lengths. Of its own
accord torch stops at eight, and from there on holds all n² scores without a word that reaches the caller."""


_BROKEN_HEADS = (8, 16)
"""Numbers a head with which torch 2.13's CPU kernel reads memory that nobody wrote, where tokens are 8 more than a
multiple of 16; eight more tokens, seen by none, keep it from that."""
_EIGHT = (0, 0, 0, 8)
_SMALLEST_HEAD = 16
"""Numbers a head that a CUDA kernel's product takes at least."""


def refusal(request: Request) -> str | None:
    """Say why FlexAttention cannot compute this, if it cannot."""
    q_BHTD = request.q_BHTD
    if request.dropout:
        return "has no dropout on weights"
    if q_BHTD.device.type == "cpu":
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q_BHTD, request.k_BHSD, request.v_BHSD)):
            return "computes no gradients on CPUs"
        if not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
            return "needs a C++ compiler on CPUs"
    elif q_BHTD.shape[-1] < _SMALLEST_HEAD:
        return f"takes head dims from {_SMALLEST_HEAD} on CUDA, not {q_BHTD.shape[-1]}"
    if q_BHTD.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"does not compute in {q_BHTD.dtype}"
    return None


def compute(request: Request) -> tuple[Tensor, None]:
    """Call the compiled kernel with the layout's blocks."""
    real, device = request.q_BHTD.shape[2], request.q_BHTD.device
    lengths_B = request.lengths_B
    inputs = request.q_BHTD, request.k_BHSD, request.v_BHSD
    if device.type == "cpu" and inputs[0].shape[-1] in _BROKEN_HEADS and real % 16 == 8:
        inputs = pad(inputs[0], _EIGHT), pad(inputs[1], _EIGHT), pad(inputs[2], _EIGHT)
        lengths_B = torch.full((len(inputs[0]),), real, device=device) if lengths_B is None else lengths_B
    tokens = inputs[0].shape[2]
    if is_length_free(request.pattern) or request.lengths_B is None:
        length: int = real
    else:  # `attend` gives such patterns rows of one length
        length = max(1, int(request.lengths_B[0]))
    shortest = tokens if lengths_B is None else int(lengths_B.min())
    blocks = _kept_blocks(request.pattern, tokens, length, shortest // BLOCK, device)
    mask = BlockMask.from_kv_blocks(
        *blocks,
        BLOCK_SIZE=BLOCK,
        mask_mod=_allows(request.pattern, length, lengths_B, device),
        seq_lengths=(tokens, tokens),
    )
    if device.type == "cpu":  # FlexAttention refuses what could have a gradient, even where none is asked for
        inputs = inputs[0].detach(), inputs[1].detach(), inputs[2].detach()
        for x in inputs if lengths_B is None else (*inputs, lengths_B):
            torch._dynamo.mark_static(x, 0)  # CPU kernels for any batch do not compile
    # numbers of a pattern are compiled in: from the second radius on torch makes them arguments of the kernel, and 2.13
    # takes the name of one, ks81, for that of the length, ks8, with a 1 behind it
    limits = {"recompile_limit": _KERNELS, "accumulated_recompile_limit": _KERNELS, "specialize_int": True}
    with torch._dynamo.config.patch(limits):
        out_BHTD: Any = _compiled()(*inputs, block_mask=mask, scale=request.scale)
    return out_BHTD[:, :, :real], None


def _allows(pattern: Pattern, length: int, lengths_B: Tensor | None, device: torch.device) -> Callable[..., Tensor]:
    """Return the pattern as FlexAttention asks for it, pair by pair."""
    # A tensor: a number would be compiled in, and CPU kernels for any length cannot reckon with it.
    long = torch.tensor(length, device=device)

    def within_text(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed: Tensor = pattern.allows(q, k, long)
        return allowed if lengths_B is None else allowed & (k < lengths_B[b])

    return within_text


def _blocks(
    pattern: Pattern, tokens: int, length: int, whole: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return how many and which key blocks each query block reads: first those with a mask, then those without.

    Args:
        pattern: a plain pattern.
        tokens: of the batch.
        length: that the pattern goes by.
        whole: key blocks that hold no padding in any row; FlexAttention reads those without a mask as they are.
        device: of the result.
    """
    count = -(-tokens // BLOCK)
    partial_NN, full_NN = (np.zeros((count, count), bool) for _ in range(2))
    if isinstance(pattern, Full):
        full_NN[:] = True
        full_NN[:, -1] = tokens % BLOCK == 0
        partial_NN = ~full_NN
    else:
        layout = pattern.layout(length, BLOCK)
        for index, (table, full) in enumerate(zip(layout.key_blocks, layout.full, strict=True)):
            partial_NN[index, table[(table >= 0) & ~full]] = True
            full_NN[index, table[(table >= 0) & full]] = True
        if layout.stride:  # classmates are everywhere
            partial_NN[:] = True
        partial_NN[:, [c // BLOCK for c in layout.columns]] = True
        partial_NN[[r // BLOCK for r in layout.rows]] = True
        partial_NN &= ~full_NN
    partial_NN[:, whole:] |= full_NN[:, whole:]
    full_NN[:, whole:] = False
    return (*_ordered(partial_NN, device), *_ordered(full_NN, device))


_kept_blocks = lru_cache(maxsize=32)(_blocks)


def _ordered(chosen_NN: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (1, 1, N) counts and (1, 1, N, N) numbers, the chosen ones first."""
    order_NN = np.argsort(~chosen_NN, axis=1, kind="stable")
    counts = torch.from_numpy(chosen_NN.sum(1)).to(device, torch.int32)
    return counts[None, None], torch.from_numpy(order_NN).to(device, torch.int32)[None, None]


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    with warnings.catch_warnings():  # torch's compiler warns of its own code when it is first imported
        warnings.simplefilter("ignore", DeprecationWarning)
        import torch._inductor.compile_fx
    return torch.compile(flex_attention, fullgraph=True)  # an error at the limit, not n² scores


BACKEND = Backend(compute, any_mask=False, documents=False, weights=False, refusal=refusal)
