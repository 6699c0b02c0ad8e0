"""`attend`: one meaning of attention, computed by whichever backend suits.

The pattern says who sees whom, `impl` says how it is computed. ``"auto"`` chooses by cost, and `choose` tells what it
would take and why; an explicit `impl` either does what was asked or refuses.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal, overload

import torch
from torch import Tensor

from louver.attention import chunked, cost, cuts, dense, flash, flex, gathered, joined, lowrank, reference, selected
from louver.attention.padding import Padding
from louver.attention.request import Backend, Request
from louver.errors import OptionError, PatternError, unknown
from louver.patterns import (
    Approximation,
    ByLength,
    Every,
    Full,
    Global,
    Heads,
    Intersection,
    Pattern,
    Selector,
    Union,
    is_length_free,
    parse,
)

BACKENDS: dict[str, Backend] = {
    "reference": reference.BACKEND,
    "dense": dense.BACKEND,
    "gathered": gathered.BACKEND,
    "chunked": chunked.BACKEND,
    "flex": flex.BACKEND,
    "flash": flash.BACKEND,
    "selected": selected.BACKEND,
    "lowrank": lowrank.BACKEND,
}

EXPORT_LIMIT: ContextVar[int | None] = ContextVar("EXPORT_LIMIT", default=None)
"""Tokens that the graph being exported reads at most; the cost model's length while a trace has none."""

_DENSE_UP_TO = 1024
"""Exported graphs that read no more than this are dense: they then take every length, not multiples of a block."""

_ALWAYS_DENSE = 256
"""Tokens under which `auto` does not even count pairs."""

_COPIED_PAIR_COST = 2.5
"""Time of a pair over that of a dense one where `gathered` copies keys (dropout, other dtypes); measured on CPUs."""


@dataclass(frozen=True)
class Choice:
    """A backend's name and the reason for it."""

    impl: str
    reason: str


@overload
def attend(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    pattern: Pattern | str = ...,
    *,
    padding: Tensor | Padding | None = ...,
    mask: Tensor | None = ...,
    documents: Tensor | None = ...,
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
    documents: Tensor | None = ...,
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
    documents: Tensor | None = None,
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
        mask: bool (B|1, H|1, T, S), True = may attend; meets the pattern.
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
    checked = _check_batch(q_BHTD, k_BHSD.shape[2], plain, padding, mask, documents, global_tokens)
    request = Request(
        q_BHTD,
        k_BHSD,
        v_BHSD,
        plain,
        scale=q_BHTD.shape[-1] ** -0.5 if scale is None else scale,
        dropout=dropout if training else 0.0,
        mask_BHTS=mask,
        documents_BT=documents,
        global_BT=global_tokens,
        return_weights=return_weights is not False,
        weights_of=None if isinstance(return_weights, bool) else _heads(return_weights, q_BHTD.shape[1]),
    )
    out_BHTD, weights_BHTS = _by_document(request, checked, impl)
    if request.return_weights:
        assert weights_BHTS is not None
        return out_BHTD, weights_BHTS
    return out_BHTD


def _heads(wanted: Sequence[int], heads: int) -> tuple[int, ...]:
    if not wanted or min(wanted) < 0 or max(wanted) >= heads:
        raise OptionError(f"return_weights names heads within 0…{heads - 1}, got {list(wanted)}")
    return tuple(wanted)


def choose(request: Request) -> Choice:
    """Say which backend ``impl="auto"`` takes for a request, and why."""
    tokens = request.q_BHTD.shape[2]
    if selected.refusal(request) is None:
        return Choice("selected", "keys are chosen by content")
    if isinstance(request.pattern, Approximation):
        return Choice("lowrank", "an approximation of all pairs")
    if request.return_weights:
        if request.weights_of is not None:
            return Choice("chunked", "returns weights of some heads in bounded memory")
        return Choice("reference", "returns all weights")
    if isinstance(request.pattern, Full):
        return Choice("dense", "every pair is allowed")
    if request.mask_BHTS is not None or request.documents_BT is not None:
        return Choice("dense", "only dense takes a general mask")
    if torch.compiler.is_exporting():
        return choose_for_export(request.pattern, EXPORT_LIMIT.get())
    if request.q_BHTD.device.type != "cpu":
        if flex.refusal(request) is None:
            return Choice("flex", "blocks of the layout, in one kernel")
        return Choice("dense", f"flex {flex.refusal(request)}")
    if tokens < _ALWAYS_DENSE:
        return Choice("dense", f"under {_ALWAYS_DENSE} tokens a call is too short to save anything")
    refused = gathered.refusal(request)
    if refused is not None or not joined.available(request.q_BHTD, request.dropout):
        pairs = request.pattern.layout(tokens, gathered.BLOCK).computed_pairs
        pays = refused is None and pairs * _COPIED_PAIR_COST < tokens**2
        return Choice("gathered" if pays else "dense", f"{pairs:,} copied pairs against {tokens**2:,}")
    return _cheaper(request)


def _cheaper(request: Request) -> Choice:
    """Hold the predicted time of `gathered` against that of `dense` with the same mask."""
    _, heads, tokens, head_dim = request.q_BHTD.shape
    rates = cost.rates()
    whole = cuts.cut(request.pattern, tokens, request.q_BHTD.dtype, request.q_BHTD.device)
    sparse = (heads * whole.pairs * rates.gathered_pair(head_dim) + len(whole.pieces) * rates.piece) / 1e6
    full = heads * tokens**2 * rates.dense_pair(head_dim) / 1e6
    reason = f"{whole.pairs:,} of {tokens**2:,} pairs: about {sparse:.2f} ms a text against {full:.2f}"
    return Choice("gathered" if sparse < full else "dense", reason)


def choose_for_export(pattern: Pattern, limit: int | None) -> Choice:
    """Say which backend goes into a graph for every length up to `limit`."""
    if isinstance(pattern, Full):
        return Choice("dense", "every pair is allowed")
    bounds = pattern.bounds()
    if bounds is None or not bounds.banded:
        return Choice("dense", "no band that holds at every length")
    if limit is not None and limit <= _DENSE_UP_TO:
        return Choice("dense", f"reads {limit} tokens at most")
    return Choice("gathered", "bounded at every length")


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


def _check_batch(
    q_BHTD: Tensor,
    keys: int,
    pattern: Pattern,
    padding: Tensor | Padding | None,
    mask: Tensor | None,
    documents: Tensor | None,
    global_tokens: Tensor | None,
) -> Padding | None:
    """Refuse what has no meaning for this batch; return the padding, read."""
    batch, heads, tokens, _ = q_BHTD.shape
    if any(isinstance(part, Every) for part in pattern.walk()):
        raise PatternError(f"{pattern} depends on the layer; pass pattern.resolve(layer)")
    if any(
        isinstance(part, Selector | Approximation)
        for whole in pattern.walk()
        for part in whole.parts()
        if isinstance(whole, Union) or (isinstance(whole, Intersection) and isinstance(part, Approximation))
    ):
        raise PatternError(f"{pattern} joins what has no mask: selectors meet patterns by & alone, approximations none")
    if tokens != keys and (not isinstance(pattern, Full) or documents is not None or global_tokens is not None):
        raise PatternError(
            f"{pattern} is for self-attention, but there are {tokens} queries and {keys} keys; use full and a mask"
        )
    if tokens != keys and padding is not None:
        raise OptionError(
            f"padding holds for queries and keys alike, but there are {tokens} and {keys}; give real keys as a mask"
        )
    for name, given, kind in (
        ("documents", documents, torch.int64),
        ("global_tokens", global_tokens, torch.bool),
    ):
        if given is not None and (given.dtype is not kind or tuple(given.shape) != (batch, tokens)):
            raise OptionError(
                f"{name} must be {kind} (batch, tokens) = ({batch}, {tokens}), got {given.dtype} {tuple(given.shape)}"
            )
    if documents is not None:
        row = _scattered_document(documents)
        if row is not None:
            raise OptionError(f"a document of row {row} comes in several stretches; its tokens must stand together")
    if mask is not None and (
        mask.dtype is not torch.bool
        or mask.ndim != 4
        or mask.shape[0] not in (1, batch)
        or mask.shape[1] not in (1, heads)
        or tuple(mask.shape[2:]) != (tokens, keys)
    ):
        raise OptionError(
            f"mask must be bool (B|1, H|1, T, S) = ({batch}|1, {heads}|1, {tokens}, {keys}), "
            f"got {mask.dtype} {tuple(mask.shape)}; convert it with from_zero_one or from_additive"
        )
    if padding is None or isinstance(padding, Padding):
        return padding
    return Padding.read(padding, batch, keys)


def _scattered_document(documents_BT: Tensor) -> int | None:
    """Return the first row in which a document's number comes again after another's."""
    for row, numbers in enumerate(documents_BT):
        stretches = torch.unique_consecutive(numbers)
        if len(stretches) != len(torch.unique(stretches)):
            return row
    return None


def _is_native(request: Request, impl: str) -> bool:
    """Say whether documents and extra global tokens go to the backend as they are, in a mask of all pairs."""
    if request.mask_BHTS is not None or request.return_weights:
        return True  # both are laid out by the whole row
    return impl != "auto" and BACKENDS[impl].documents


def _by_document(request: Request, padding: Padding | None, impl: str) -> tuple[Tensor, Tensor | None]:
    """Give every document of packed sequences a row of its own, documents of similar length together, and put back."""
    if request.documents_BT is None:
        return _by_side(request, padding, impl)
    if _is_native(request, impl):
        if any(isinstance(part, ByLength) for part in request.pattern.walk()):
            raise PatternError("by_length on packed documents goes with neither mask nor weights, nor with this impl")
        return _by_side(request, padding, impl)
    batch, heads, tokens, width = request.q_BHTD.shape
    device = request.q_BHTD.device
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (request.q_BHTD, request.k_BHSD, request.v_BHSD)]
    globals_X = None if request.global_BT is None else request.global_BT.flatten()
    out_XHD = flat[2].new_zeros(batch * tokens, heads, width)
    for documents in _similar(_documents(request.documents_BT, padding)):
        lengths_N = torch.tensor([stop - start for start, stop in documents], device=device)
        starts_N = torch.tensor([start for start, _ in documents], device=device)
        within_T = torch.arange(int(lengths_N.max()), device=device)
        real_NT = within_T < lengths_N[:, None]
        index_NT = torch.where(real_NT, starts_N[:, None] + within_T, starts_N[:, None])
        q_NHTD, k_NHTD, v_NHTD = (x[index_NT].transpose(1, 2) for x in flat)
        alone = replace(
            request,
            q_BHTD=q_NHTD,
            k_BHSD=k_NHTD,
            v_BHSD=v_NHTD,
            documents_BT=None,
            global_BT=None if globals_X is None else globals_X[index_NT] & real_NT,
        )
        found, _ = _by_branch(alone, Padding.of_lengths(lengths_N, len(within_T)), impl)
        out_XHD = out_XHD.index_copy(0, index_NT[real_NT], found.transpose(1, 2)[real_NT])
    return out_XHD.view(batch, tokens, heads, width).transpose(1, 2), None


def _documents(documents_BT: Tensor, padding: Padding | None) -> list[tuple[int, int]]:
    """Return where each document starts and stops, counted over all rows behind each other; padding has none."""
    batch, tokens = documents_BT.shape
    found: list[tuple[int, int]] = []
    for row in range(batch):
        first, last = (0, tokens) if padding is None else padding.span(row)
        place = row * tokens + first
        for count in torch.unique_consecutive(documents_BT[row, first:last], return_counts=True)[1].tolist():
            found.append((place, place + count))
            place += count
    return found


def _similar(documents: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Group documents so that none is padded to more than twice its length."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for start, stop in documents:
        groups.setdefault((stop - start).bit_length(), []).append((start, stop))
    return list(groups.values())


def _by_side(request: Request, padding: Padding | None, impl: str) -> tuple[Tensor, Tensor | None]:
    """Bring left padding to the right, so that positions are indices, and back."""
    if padding is None or padding.whole:
        return _by_branch(request, None, impl)
    if not padding.left or isinstance(request.pattern, Full):
        return _by_branch(request, padding, impl)
    if request.mask_BHTS is not None or request.documents_BT is not None or request.return_weights:
        raise OptionError("left padding goes with neither mask, documents nor return_weights; pad on the right")
    globals_BT = request.global_BT
    if globals_BT is not None:
        globals_BT = padding.to_front(globals_BT[:, None, :, None])[:, 0, :, 0]
    front = replace(
        request,
        q_BHTD=padding.to_front(request.q_BHTD),
        k_BHSD=padding.to_front(request.k_BHSD),
        v_BHSD=padding.to_front(request.v_BHSD),
        global_BT=globals_BT,
    )
    out_BHTD, weights = _by_branch(front, padding.aligned(), impl)
    return padding.to_place(out_BHTD), weights


def _by_branch(request: Request, padding: Padding | None, impl: str) -> tuple[Tensor, Tensor | None]:
    """Split the batch where rows have patterns of their own, compute each at its own longest row, and join.

    Rows differ by the branch of `by_length`, by their extra global tokens, which become part of the row's pattern, and
    by their length if the pattern depends on it.
    """
    split_globals = request.global_BT is not None and not _is_native(request, impl)
    by_length = any(isinstance(part, ByLength) for part in request.pattern.walk())
    if not by_length and not split_globals and is_length_free(request.pattern):
        return _by_head(request, padding, impl)
    batch, _, tokens, _ = request.q_BHTD.shape
    if torch.compiler.is_exporting():
        raise PatternError("a graph holds one branch of by_length; export each pattern.at(length) by itself")
    lengths = [tokens] * batch if padding is None else padding.lengths_B.tolist()
    groups: dict[tuple[Pattern, int], list[int]] = {}
    for row, length in enumerate(lengths):
        pattern = request.pattern.at(length)
        if split_globals:
            assert request.global_BT is not None
            pattern = _with_globals(pattern, request.global_BT[row, :length])
        groups.setdefault((pattern, 0 if is_length_free(pattern) else length), []).append(row)
    if split_globals:
        request = replace(request, global_BT=None)
    if len(groups) == 1:
        ((pattern, _),) = groups
        return _by_head(replace(request, pattern=pattern), padding, impl)
    if request.return_weights:
        raise OptionError("weights of a batch whose rows differ in pattern differ in shape; pass one row at a time")
    assert padding is not None or split_globals  # without padding all rows are equally long
    out_BHTD = torch.zeros_like(request.v_BHSD)
    for (pattern, _), rows in groups.items():
        index = torch.tensor(rows, device=out_BHTD.device)
        longest = max(1, *(lengths[row] for row in rows)) if len(rows) > 1 else max(1, lengths[rows[0]])
        part = replace(
            request,
            pattern=pattern,
            q_BHTD=request.q_BHTD[index, :, :longest],
            k_BHSD=request.k_BHSD[index, :, :longest],
            v_BHSD=request.v_BHSD[index, :, :longest],
            mask_BHTS=_rows_of(request.mask_BHTS, index, longest),
            global_BT=request.global_BT[index, :longest] if request.global_BT is not None else None,
        )
        found, _ = _by_head(part, None if padding is None else padding.rows(rows, longest), impl)
        missing = tokens - longest
        out_BHTD = out_BHTD.index_copy(0, index, torch.nn.functional.pad(found, (0, 0, 0, missing)))
    return out_BHTD, None


def _with_globals(pattern: Pattern, global_T: Tensor) -> Pattern:
    positions = tuple(global_T.nonzero()[:, 0].tolist())
    return pattern | Global(positions=positions) if positions and not isinstance(pattern, Full) else pattern


def _by_head(request: Request, padding: Padding | None, impl: str) -> tuple[Tensor, Tensor | None]:
    """Split the heads where `heads` gives them patterns of their own, and join."""
    if not any(isinstance(part, Heads) for part in request.pattern.walk()):
        return _run(request, padding, impl)
    if request.weights_of is not None:
        raise OptionError("weights of chosen heads do not go with heads({…}); ask for all, or for one head's pattern")
    groups: dict[Pattern, list[int]] = {}
    for head in range(request.q_BHTD.shape[1]):
        groups.setdefault(request.pattern.resolve(0, head), []).append(head)
    outs, weights = [], []
    for pattern, heads in groups.items():  # neighbours, for limits rise; two groups of one pattern are joined
        index = torch.tensor(heads, device=request.q_BHTD.device)
        mask = request.mask_BHTS
        part = replace(
            request,
            pattern=pattern,
            q_BHTD=request.q_BHTD.index_select(1, index),
            k_BHSD=request.k_BHSD.index_select(1, index),
            v_BHSD=request.v_BHSD.index_select(1, index),
            mask_BHTS=mask if mask is None or mask.shape[1] == 1 else mask.index_select(1, index),
        )
        out, weight = _run(part, padding, impl)
        outs.append(out)
        weights.append(weight)
    order = [head for heads in groups.values() for head in heads]
    back = torch.tensor(sorted(range(len(order)), key=order.__getitem__), device=request.q_BHTD.device)
    joined_BHTS = None
    if request.return_weights:
        joined_BHTS = torch.cat([w for w in weights if w is not None], 1).index_select(1, back)
    return torch.cat(outs, 1).index_select(1, back), joined_BHTS


def _rows_of(mask_BHTS: Tensor | None, index: Tensor, longest: int) -> Tensor | None:
    if mask_BHTS is None:
        return None
    chosen = mask_BHTS if mask_BHTS.shape[0] == 1 else mask_BHTS[index]
    return chosen[:, :, :longest, :longest]


def _run(request: Request, padding: Padding | None, impl: str) -> tuple[Tensor, Tensor | None]:
    """Compute a plain request with one backend, and clear the rows of padding."""
    if padding is not None and not padding.whole:
        if padding.left:  # only `Full` comes here: any order of keys is the same, so the mask says all
            request = replace(request, mask_BHTS=_meet(request.mask_BHTS, padding.mask_BT[:, None, None, :]))
        else:
            request = replace(request, padding=padding)
    name = choose(request).impl if impl == "auto" else impl
    backend = BACKENDS[name]
    by_itself = [part for part in request.pattern.walk() if isinstance(part, Selector | Approximation)]
    if by_itself and name not in ("selected", "lowrank"):
        raise OptionError(f"impl {name!r} computes masks of positions, and {by_itself[0]} is none; use 'auto'")
    if not backend.any_mask and (request.mask_BHTS is not None or request.q_BHTD.shape[2] != request.k_BHSD.shape[2]):
        raise OptionError(f"impl {name!r} takes neither a general mask nor cross-attention; use 'dense' or 'auto'")
    if not backend.documents and (request.documents_BT is not None or request.global_BT is not None):
        raise OptionError(f"impl {name!r} takes no mask beside documents or global_tokens; use 'dense' or 'auto'")
    if request.return_weights and not backend.weights:
        raise OptionError(f"impl {name!r} does not return weights; use 'reference', 'chunked' or 'auto'")
    refused = backend.refusal(request)
    if refused is not None:
        raise OptionError(f"impl {name!r} {refused}; use 'dense' or 'auto'")
    out_BHTD, weights_BHTS = backend.compute(request)
    if padding is not None and not padding.whole and request.q_BHTD.shape[2] == padding.mask_BT.shape[1]:
        out_BHTD = out_BHTD.masked_fill(~padding.mask_BT[:, None, :, None], 0.0)
    return out_BHTD, weights_BHTS


def _meet(mask_BHTS: Tensor | None, other: Tensor) -> Tensor:
    return other if mask_BHTS is None else mask_BHTS & other
