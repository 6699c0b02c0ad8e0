"""One call into plain ones: backends see one pattern, right padding, and nothing that differs from row to row.

Documents of packed sequences become rows, left padding moves to the right, rows with patterns of their own (by length,
by extra global tokens) are computed apart, and so are heads; then all is put back.

Shape letters: B batch, H heads, T query tokens, S key tokens, D numbers a head; N documents of a group, X tokens of all
rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from louver.attention.choose import BACKENDS, choose
from louver.attention.documents import Documents
from louver.attention.padding import Padding
from louver.attention.request import Request
from louver.errors import OptionError, PatternError
from louver.patterns import Approximation, ByLength, Full, Global, Heads, Pattern, Selector, holds, is_length_free


def _is_native(request: Request, impl: str) -> bool:
    """Say whether documents and extra global tokens go to the backend as they are, in a mask of all pairs."""
    if request.mask_BHTS is not None or request.return_weights:
        return True  # both are laid out by the whole row
    return impl != "auto" and BACKENDS[impl].documents


def compute(request: Request, padding: Padding | None, impl: str) -> tuple[Tensor, Tensor | None]:
    """Compute a checked request whose pattern, padding and documents may be anything.

    First of all, every document of packed sequences gets a row of its own, beside documents of similar length.

    Args:
        request: without its padding.
        padding: on either side.
        impl: "auto", or the name of a backend.

    Returns:
        The output, and the weights if they were asked for.
    """
    if request.documents is None:
        return _by_side(request, padding, impl)
    if _is_native(request, impl):
        if holds(request.pattern, ByLength):
            raise PatternError("by_length on packed documents goes with neither mask nor weights, nor with this impl")
        return _by_side(request, padding, impl)
    batch, heads, tokens, width = request.q_BHTD.shape
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (request.q_BHTD, request.k_BHSD, request.v_BHSD)]
    globals_X = None if request.global_BT is None else request.global_BT.flatten()
    out_XHD = flat[2].new_zeros(batch * tokens, heads, width)
    for group in request.documents.groups(padding):
        index_NT, real_NT = group.index_NT, group.padding.mask_BT
        q_NHTD, k_NHTD, v_NHTD = (x[index_NT].transpose(1, 2) for x in flat)
        alone = replace(
            request,
            q_BHTD=q_NHTD,
            k_BHSD=k_NHTD,
            v_BHSD=v_NHTD,
            documents=None,
            global_BT=None if globals_X is None else globals_X[index_NT] & real_NT,
        )
        found, _ = _by_branch(alone, group.padding, impl)
        out_XHD = out_XHD.index_copy(0, index_NT[real_NT], found.transpose(1, 2)[real_NT])
    return out_XHD.view(batch, tokens, heads, width).transpose(1, 2), None


def _by_side(request: Request, padding: Padding | None, impl: str) -> tuple[Tensor, Tensor | None]:
    """Bring left padding to the right, so that positions are indices, and back."""
    if padding is None or padding.whole:
        return _by_branch(request, None, impl)
    in_place = isinstance(request.pattern, Full) and (impl == "auto" or BACKENDS[impl].any_mask)
    if not padding.left or in_place:
        return _by_branch(request, padding, impl)

    def of_tokens(x_BT: Tensor) -> Tensor:
        return padding.to_front(x_BT[:, None, :, None])[:, 0, :, 0]

    mask, batch = request.mask_BHTS, request.q_BHTD.shape[0]
    if mask is not None:
        mask = padding.to_front(mask.expand(batch, -1, -1, -1).transpose(2, 3)).transpose(2, 3)
        mask = mask if mask.shape[2] == 1 else padding.to_front(mask)
    front = replace(
        request,
        q_BHTD=padding.to_front(request.q_BHTD),
        k_BHSD=padding.to_front(request.k_BHSD),
        v_BHSD=padding.to_front(request.v_BHSD),
        mask_BHTS=mask,
        documents=None if request.documents is None else Documents(of_tokens(request.documents.numbers_BT)),
        global_BT=None if request.global_BT is None else of_tokens(request.global_BT),
    )
    out_BHTD, weights_BHTS = _by_branch(front, padding.aligned(), impl)
    if weights_BHTS is not None:
        weights_BHTS = padding.to_place(padding.to_place(weights_BHTS).transpose(2, 3)).transpose(2, 3)
    return padding.to_place(out_BHTD), weights_BHTS


def _by_branch(request: Request, padding: Padding | None, impl: str) -> tuple[Tensor, Tensor | None]:
    """Split the batch where rows have patterns of their own, compute each at its own longest row, and join.

    Rows differ by the branch of `by_length`, by their extra global tokens, which become part of the row's pattern, and
    by their length if the pattern depends on it.
    """
    if request.documents is not None:  # in a mask of all pairs, which goes by each document's own length
        return _by_head(request, padding, impl)
    split_globals = request.global_BT is not None and not _is_native(request, impl)
    by_length = holds(request.pattern, ByLength)
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
    if not holds(request.pattern, Heads):
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
            real = padding.mask_BT[:, None, None, :]
            request = replace(request, mask_BHTS=real if request.mask_BHTS is None else request.mask_BHTS & real)
        else:
            request = replace(request, padding=padding)
    name = choose(request).impl if impl == "auto" else impl
    backend = BACKENDS[name]
    if name not in ("selected", "lowrank") and holds(request.pattern, Selector, Approximation):
        raise OptionError(f"impl {name!r} computes masks of positions, and {request.pattern} has none; use 'auto'")
    if not backend.any_mask and (request.mask_BHTS is not None or request.q_BHTD.shape[2] != request.k_BHSD.shape[2]):
        raise OptionError(f"impl {name!r} takes neither a general mask nor cross-attention; use 'dense' or 'auto'")
    if not backend.documents and (request.documents is not None or request.global_BT is not None):
        raise OptionError(f"impl {name!r} takes no mask beside documents or global_tokens; use 'dense' or 'auto'")
    if request.return_weights and not backend.weights:
        raise OptionError(f"impl {name!r} does not return weights; use 'reference', 'chunked' or 'auto'")
    refused = backend.refusal(request)
    if refused is not None:
        remedy = "" if ";" in refused else "; use 'dense' or 'auto'"
        raise OptionError(f"impl {name!r} {refused}{remedy}")
    out_BHTD, weights_BHTS = backend.compute(request)
    if padding is not None and not padding.whole and request.q_BHTD.shape[2] == padding.mask_BT.shape[1]:
        unreal_B1T1 = ~padding.mask_BT[:, None, :, None]
        out_BHTD = out_BHTD.masked_fill(unreal_B1T1, 0.0)
        weights_BHTS = None if weights_BHTS is None else weights_BHTS.masked_fill(unreal_B1T1, 0.0)
    return out_BHTD, weights_BHTS
