"""`attend`: one meaning of attention, computed by whichever backend suits.

The pattern says who sees whom, `impl` says how it is computed. ``"auto"`` chooses by cost, and
`louver.attention.choose` tells what it would take and why; an explicit `impl` either does what was asked or refuses.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Literal, overload

import torch
from torch import Tensor

from louver.attention import split
from louver.attention.choose import BACKENDS
from louver.attention.documents import Documents
from louver.attention.padding import Padding
from louver.attention.request import Request
from louver.errors import OptionError, PatternError, unknown
from louver.patterns import Approximation, Every, Full, Intersection, Pattern, Selector, Union, holds, parse


@overload
def attend(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    pattern: Pattern | str = ...,
    *,
    padding: Tensor | Padding | None = ...,
    mask: Tensor | None = ...,
    documents: Tensor | Documents | None = ...,
    global_tokens: Tensor | None = ...,
    scale: float | None = ...,
    dropout: float = ...,
    training: bool = ...,
    return_weights: Literal[False] = ...,
    impl: str = ...,
) -> Tensor: ...


@overload
def attend(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    pattern: Pattern | str = ...,
    *,
    padding: Tensor | Padding | None = ...,
    mask: Tensor | None = ...,
    documents: Tensor | Documents | None = ...,
    global_tokens: Tensor | None = ...,
    scale: float | None = ...,
    dropout: float = ...,
    training: bool = ...,
    return_weights: Literal[True] | Sequence[int],
    impl: str = ...,
) -> tuple[Tensor, Tensor]: ...


def attend(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    pattern: Pattern | str = "full",
    *,
    padding: Tensor | Padding | None = None,
    mask: Tensor | None = None,
    documents: Tensor | Documents | None = None,
    global_tokens: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    training: bool = False,
    return_weights: bool | Sequence[int] = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend along a pattern.

    Args:
        q_BHTD: queries (batch, heads, tokens, head dim).
        k_BHSD: keys.
        v_BHSD: values.
        pattern: a pattern or its string; `by_length` picks for each row by its own real tokens, `heads` for each head.
        padding: bool (batch, tokens), True = real token, right or left padded; positions count from the first real one.
            It holds for queries and keys alike; in cross-attention give real keys as a `mask`.
        mask: bool (B|1, H|1, T|1, S), True = may attend; meets the pattern.
        documents: int64 (B, T), document number of each token of packed sequences; only the same document is seen, and
            positions, lengths and `by_length` are those of the document. Its tokens stand together.
        global_tokens: bool (B, T), tokens that see and are seen by everybody, beside the pattern's own.
        scale: factor on the products; D ** -0.5 if None.
        dropout: probability that a weight is dropped while `training`.
        training: whether dropout is on.
        return_weights: also return the softmax weights (B, H, T, S); or those of the heads that are named, in bounded
            memory beside them ("chunked").
        impl: "auto", or the name of a backend.

    Returns:
        (B, H, T, D) in the dtype of `v_BHSD`. A query that is padding, or may see nothing, gets zeros.

    Raises:
        OptionError: if shapes, masks or the backend do not fit what is asked.
        PatternError: if the pattern depends on the layer, or is asked of queries and keys of different lengths.
    """
    plain = parse(pattern)
    _check_tensors(q_BHTD, k_BHSD, v_BHSD)
    if not 0 <= dropout < 1:
        raise OptionError(f"dropout must be at least 0 and below 1, got {dropout}")
    if impl != "auto" and impl not in BACKENDS:
        raise OptionError(unknown("impl", impl, ["auto", *BACKENDS]))
    _check_places(q_BHTD, padding, mask, documents, global_tokens)
    _check_batch(q_BHTD, k_BHSD.shape[2], plain, padding, mask, documents, global_tokens)
    batch, heads, tokens, _ = q_BHTD.shape
    wanted = None if isinstance(return_weights, bool) else _heads(return_weights, heads)
    if not q_BHTD.numel() or not k_BHSD.numel():
        out_BHTD = q_BHTD * 0.0  # nothing to attend from, or to
        shown = heads if wanted is None else len(wanted)
        return (out_BHTD, out_BHTD.new_zeros(batch, shown, tokens, k_BHSD.shape[2])) if return_weights else out_BHTD
    real = Padding.read(padding, batch, tokens) if isinstance(padding, Tensor) else padding
    request = Request(
        q_BHTD,
        k_BHSD,
        v_BHSD,
        plain,
        scale=q_BHTD.shape[-1] ** -0.5 if scale is None else scale,
        dropout=dropout if training else 0.0,
        mask_BHTS=mask,
        documents=Documents.read(documents, batch, tokens, real) if isinstance(documents, Tensor) else documents,
        global_BT=global_tokens,
        return_weights=return_weights is not False,
        weights_of=wanted,
    )
    # under autocast some kernels would change the dtype, and some not
    kind = q_BHTD.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        out_BHTD, weights_BHTS = split.compute(request, real, impl)
    if request.return_weights:
        assert weights_BHTS is not None
        return out_BHTD, weights_BHTS
    return out_BHTD


def _heads(wanted: Sequence[int], heads: int) -> tuple[int, ...]:
    known = isinstance(wanted, Sequence) and bool(wanted) and all(type(head) is int for head in wanted)
    if not known or min(wanted) < 0 or max(wanted) >= heads:
        raise OptionError(f"return_weights is a bool or names heads within 0…{heads - 1}, got {wanted!r}")
    return tuple(wanted)


def _check_tensors(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> None:
    """Refuse queries, keys and values that do not fit each other."""
    if not q_BHTD.ndim == k_BHSD.ndim == v_BHSD.ndim == 4:
        raise OptionError(
            f"q, k and v must have 4 dimensions (batch, heads, tokens, head dim), "
            f"got {q_BHTD.ndim}, {k_BHSD.ndim} and {v_BHSD.ndim}"
        )
    batch, heads, _, width = q_BHTD.shape
    if k_BHSD.shape != v_BHSD.shape or k_BHSD.shape[:2] != (batch, heads) or k_BHSD.shape[3] != width:
        raise OptionError(
            f"q (B, H, T, D), k and v (B, H, S, D) must agree, got {tuple(q_BHTD.shape)}, "
            f"{tuple(k_BHSD.shape)} and {tuple(v_BHSD.shape)}"
        )
    if not q_BHTD.dtype == k_BHSD.dtype == v_BHSD.dtype:
        raise OptionError(f"q, k and v must have one dtype, got {q_BHTD.dtype}, {k_BHSD.dtype}, {v_BHSD.dtype}")
    if not q_BHTD.device == k_BHSD.device == v_BHSD.device:
        raise OptionError(f"q, k and v must be on one device, got {q_BHTD.device}, {k_BHSD.device}, {v_BHSD.device}")
    if not q_BHTD.is_floating_point():
        raise OptionError(f"q, k and v must be floating point numbers, got {q_BHTD.dtype}")
    if q_BHTD.dtype is torch.float16 and q_BHTD.device.type == "cpu":
        raise OptionError("float16 is for GPUs; on a CPU convert to float32, or to bfloat16 where it has bf16 products")
    if 0 in (heads, width):
        raise OptionError(f"q, k and v need heads with numbers in them, got {tuple(q_BHTD.shape)}")


def _check_places(
    q_BHTD: Tensor,
    padding: Tensor | Padding | None,
    mask: Tensor | None,
    documents: Tensor | Documents | None,
    global_tokens: Tensor | None,
) -> None:
    """Refuse what is no tensor, lies elsewhere, or was read for another batch."""
    batch, _, tokens, _ = q_BHTD.shape
    for name, given in (
        ("padding", padding.mask_BT if isinstance(padding, Padding) else padding),
        ("mask", mask),
        ("documents", documents.numbers_BT if isinstance(documents, Documents) else documents),
        ("global_tokens", global_tokens),
    ):
        if given is not None and not isinstance(given, Tensor):
            raise OptionError(f"{name} must be a tensor, got {type(given).__name__}")
        if given is not None and given.device != q_BHTD.device:
            raise OptionError(f"{name} must be on the device of q, {q_BHTD.device}, got {given.device}")
    for name, read in (
        ("padding", padding.mask_BT if isinstance(padding, Padding) else None),
        ("documents", documents.numbers_BT if isinstance(documents, Documents) else None),
    ):
        if read is not None and tuple(read.shape) != (batch, tokens):
            raise OptionError(
                f"{name} was read for (batch, tokens) = {tuple(read.shape)}, got q of ({batch}, {tokens})"
            )


def _check_batch(
    q_BHTD: Tensor,
    keys: int,
    pattern: Pattern,
    padding: Tensor | Padding | None,
    mask: Tensor | None,
    documents: Tensor | Documents | None,
    global_tokens: Tensor | None,
) -> None:
    """Refuse what has no meaning for this batch."""
    batch, heads, tokens, _ = q_BHTD.shape
    if holds(pattern, Every):
        raise PatternError(f"{pattern} depends on the layer; pass pattern.resolve(layer)")
    if holds(pattern, Union, Intersection) and _joins_what_has_no_mask(pattern):
        raise PatternError(f"{pattern} joins what has no mask: selectors meet patterns by & alone, approximations none")
    if global_tokens is not None and holds(pattern, Selector, Approximation):
        raise PatternError(f"{pattern} has no mask that extra global tokens could join; leave global_tokens out")
    if tokens != keys and (not isinstance(pattern, Full) or documents is not None or global_tokens is not None):
        raise PatternError(
            f"{pattern} is for self-attention, but there are {tokens} queries and {keys} keys; use full and a mask"
        )
    if tokens != keys and padding is not None:
        raise OptionError(
            f"padding holds for queries and keys alike, but there are {tokens} and {keys}; give real keys as a mask"
        )
    if global_tokens is not None and (
        global_tokens.dtype is not torch.bool or tuple(global_tokens.shape) != (batch, tokens)
    ):
        raise OptionError(
            f"global_tokens must be torch.bool (batch, tokens) = ({batch}, {tokens}), "
            f"got {global_tokens.dtype} {tuple(global_tokens.shape)}"
        )
    if mask is not None and (
        mask.dtype is not torch.bool
        or mask.ndim != 4
        or mask.shape[0] not in (1, batch)
        or mask.shape[1] not in (1, heads)
        or mask.shape[2] not in (1, tokens)
        or mask.shape[3] != keys
    ):
        raise OptionError(
            f"mask must be bool (B|1, H|1, T|1, S) = ({batch}|1, {heads}|1, {tokens}|1, {keys}), "
            f"got {mask.dtype} {tuple(mask.shape)}; convert it with from_zero_one or from_additive"
        )


@lru_cache(maxsize=256)
def _joins_what_has_no_mask(pattern: Pattern) -> bool:
    return any(
        isinstance(part, Selector | Approximation)
        for whole in pattern.walk()
        for part in whole.parts()
        if isinstance(whole, Union) or (isinstance(whole, Intersection) and isinstance(part, Approximation))
    )
