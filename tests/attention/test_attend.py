from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import PLAIN
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import louver
from louver.attention import (
    BACKENDS,
    Documents,
    Padding,
    Request,
    SelfAttention,
    attend,
    choose,
    cuts,
    from_additive,
    from_zero_one,
    gathered,
    joined,
)
from louver.errors import OptionError, PatternError
from louver.patterns import Window, parse


def inputs(
    batch: int, heads: int, tokens: int, width: int = 8, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)

    def one() -> Tensor:
        return torch.randn(batch, heads, tokens, width, generator=generator).to(dtype).requires_grad_()

    return one(), one(), one()


def padded(tokens: int, side: str | None) -> Tensor | None:
    if side is None:
        return None
    mask = torch.zeros(3, tokens, dtype=torch.bool)
    for row, length in enumerate((tokens, max(1, tokens // 2), 0)):
        mask[row, slice(0, length) if side == "right" else slice(tokens - length, tokens)] = True
    return mask


def by_hand(q: Tensor, k: Tensor, v: Tensor, pattern: str, padding: Tensor | None) -> Tensor:
    """Loop over rows and queries in float64: independent of every backend, the reference included."""
    rule = parse(pattern)
    out = torch.zeros_like(v, dtype=torch.float64)
    for row in range(q.shape[0]):
        real = torch.arange(q.shape[2]) if padding is None else padding[row].nonzero()[:, 0]
        length = len(real)
        for place, index in enumerate(real.tolist()):
            seen = [
                j for j in range(length) if bool(rule.at(length).allows(torch.tensor(place), torch.tensor(j), length))
            ]
            if seen:
                keys = real[seen]
                scores = (q[row, :, index].double()[:, None] * k[row][:, keys].double()).sum(-1) * q.shape[-1] ** -0.5
                out[row, :, index] = (scores.softmax(-1)[:, :, None] * v[row][:, keys].double()).sum(1)
    return out


def gap(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach(), expected.detach()
    return float(((found - expected).abs() / (1 + expected.abs())).max()) if found.numel() else 0.0


@pytest.mark.parametrize("side", [None, "right", "left"])
@pytest.mark.parametrize("pattern", ["full", *PLAIN[:3], "causal", "by_length({20: full, inf: window(4) | global(1)})"])
def test_reference_equals_loops(pattern: str, side: str | None) -> None:
    q, k, v = inputs(3, 2, 37)
    padding = padded(37, side)
    found = attend(q, k, v, pattern, padding=padding, impl="reference")
    assert gap(found, by_hand(q, k, v, pattern, padding)) < 1e-5


@pytest.mark.parametrize("impl", ["dense", "gathered"])
@pytest.mark.parametrize("pattern", PLAIN)
def test_backends_equal_the_reference_forward_and_backward(pattern: str, impl: str) -> None:
    for tokens in (1, 2, 127, 128, 129, 257, 521):
        for side in (None, "right", "left"):
            q, k, v = inputs(3, 2, tokens)
            padding = padded(tokens, side)
            weight = torch.arange(8.0)
            expected = attend(q, k, v, pattern, padding=padding, impl="reference")
            found = attend(q, k, v, pattern, padding=padding, impl=impl)
            assert gap(found, expected) < 1e-5, (tokens, side)
            wanted = torch.autograd.grad((expected * weight).sum(), (q, k, v))
            got = torch.autograd.grad((found * weight).sum(), (q, k, v))
            for a, b in zip(got, wanted, strict=True):
                assert gap(a, b) < 1e-4, (tokens, side)
                assert torch.isfinite(a).all()


@pytest.mark.parametrize("pattern", [p for p in PLAIN if "strided" not in p and "axial" not in p])
def test_copies_equal_pieces(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other devices, dropout and graphs take, beside what a CPU takes."""
    for tokens in (1, 64, 129, 300):
        for side in (None, "right", "left"):
            q, k, v = inputs(3, 2, tokens)
            padding = padded(tokens, side)
            monkeypatch.undo()
            pieces = attend(q, k, v, pattern, padding=padding, impl="gathered")
            monkeypatch.setattr(joined, "available", lambda *_: False)
            copies = attend(q, k, v, pattern, padding=padding, impl="gathered")
            assert gap(pieces, copies) < 1e-5, (tokens, side)
            for a, b in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (pieces, copies)), strict=True):
                assert gap(a, b) < 1e-4, (tokens, side)


@pytest.mark.parametrize("impl", ["dense", "gathered"])
@pytest.mark.parametrize("tokens", [64, 128, 130])
def test_any_strides(impl: str, tokens: int) -> None:
    """The fused kernel by its internal name takes for granted that a head's numbers lie beside each other."""
    generator = torch.Generator().manual_seed(0)
    pattern = "window(20) | global(1)"
    turned = [torch.randn(2, 2, 8, tokens, generator=generator).transpose(2, 3).requires_grad_() for _ in range(3)]
    stepped = [torch.randn(2, 2, tokens, 16, generator=generator)[..., ::2].requires_grad_() for _ in range(3)]
    for inside in (turned, stepped):
        q, k, v = inside
        expected, found = (attend(q, k, v, pattern, impl=name) for name in ("reference", impl))
        assert gap(found, expected) < 1e-5
        weight = torch.randn(2, 2, 8, tokens, generator=generator).transpose(2, 3)
        wanted, got = (torch.autograd.grad(x, inside, weight) for x in (expected, found))
        assert all(gap(a, b) < 1e-4 for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("impl", ["dense", "gathered"])
@pytest.mark.parametrize("pattern", ["window(4)", "window(5) & global(positions=[3, 70])"])
def test_what_inference_kept_serves_training(pattern: str, impl: str) -> None:
    """In the second pattern most queries see nothing."""
    q, k, v = inputs(1, 2, 140)
    with torch.inference_mode():
        attend(q, k, v, pattern, impl=impl)
    found = attend(q, k, v, pattern, impl=impl)
    expected = attend(q, k, v, pattern, impl="reference")
    wanted, got = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (expected, found))
    assert all(gap(a, b) < 1e-4 for a, b in zip(got, wanted, strict=True))


def test_one_text_leaves_its_neighbours_alone() -> None:
    """Infinite values of one text must not reach another of the batch, not even times zero."""
    q, k, v = (x.detach().clone() for x in inputs(2, 3, 256))
    v[0, :, -1] = float("inf")
    for impl in ("reference", "dense", "gathered"):
        assert attend(q, k, v, "window(20) | global(1)", impl=impl)[1].isfinite().all()


def test_cuts_share_masks_and_keep_within_their_budget() -> None:
    whole = cuts.cut(parse("window(128) | global(1)"), 4096, torch.float32, torch.device("cpu"))
    near = [piece for piece in whole.pieces if isinstance(piece, joined.Windows)]
    assert len(near) <= 12  # eight chunks, and what is special at both ends
    assert sum(piece.mask is not None and len(piece.mask) > 1 for piece in near) <= 3
    assert whole.bytes < 1 << 20
    blockwise = cuts.cut(parse("blocks(64, neighbours=3)"), 2048, torch.float32, torch.device("cpu"))
    assert all(isinstance(piece, joined.Windows) for piece in blockwise.pieces)
    assert any(piece.mask is None for piece in blockwise.pieces)
    store = cuts._Store(budget=3 * whole.bytes)
    for key in range(9):
        store.put((key,), whole)
    assert len(store.cuts) == 3
    assert store.get((8,)) is whole
    assert store.get((0,)) is None


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 400),
    radius=st.integers(1, 300),
    first=st.integers(1, 4),
    lengths=st.lists(st.integers(0, 400), min_size=2, max_size=3),
    left=st.booleans(),
)
def test_gathered_for_any_length_and_padding(
    tokens: int, radius: int, first: int, lengths: list[int], left: bool
) -> None:
    q, k, v = inputs(len(lengths), 1, tokens, 4)
    padding = torch.zeros(len(lengths), tokens, dtype=torch.bool)
    for row, length in enumerate(min(n, tokens) for n in lengths):
        padding[row, slice(tokens - length, tokens) if left else slice(0, length)] = True
    pattern = f"window({radius}) | global({first})"
    found = attend(q, k, v, pattern, padding=padding, impl="gathered")
    assert gap(found, attend(q, k, v, pattern, padding=padding, impl="reference")) < 1e-5


@pytest.mark.parametrize("impl", ["reference", "dense", "gathered"])
def test_bf16(impl: str) -> None:
    q, k, v = inputs(2, 2, 200, 16, torch.bfloat16)
    expected = attend(q.double(), k.double(), v.double(), "window(20) | global(1)", impl="reference")
    found = attend(q, k, v, "window(20) | global(1)", impl=impl)
    assert found.dtype is torch.bfloat16
    assert gap(found.double(), expected) < 2e-2


@pytest.mark.parametrize("impl", ["dense", "gathered"])
def test_negative_control(impl: str) -> None:
    """Dropping the pattern or the padding is seen by the comparison that the tests above make."""
    q, k, v = inputs(3, 2, 200)
    padding = padded(200, "right")
    expected = attend(q, k, v, "window(5)", padding=padding, impl="reference")
    assert gap(attend(q, k, v, "window(6)", padding=padding, impl=impl), expected) > 1e-2
    assert gap(attend(q, k, v, "window(5)", impl=impl)[1, :, :100], expected[1, :, :100]) > 1e-2


def test_no_square_tensor_in_gathered() -> None:
    tokens = 4096
    q, k, v = inputs(1, 1, tokens, 4)
    biggest = 0

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal biggest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple) else (result,):
                if isinstance(tensor, Tensor):
                    biggest = max(biggest, tensor.numel())
            return result

    with Watch():  # type: ignore[no-untyped-call]
        attend(q, k, v, "window(128) | global(1)", impl="gathered").sum().backward()  # type: ignore[no-untyped-call]
    assert biggest < tokens * tokens / 4


def test_rows_that_see_nothing_are_zero() -> None:
    q, k, v = inputs(1, 1, 6)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[0, 0, 2] = False
    for impl in ("reference", "dense"):
        found = attend(q, k, v, mask=mask, impl=impl)
        assert (found[0, 0, 2] == 0).all()
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(found.sum(), (q, k, v)))


def test_cross_attention_and_general_masks() -> None:
    q, _, _ = inputs(2, 3, 5)
    _, k, v = inputs(2, 3, 9)
    mask = torch.rand(2, 1, 5, 9) > 0.4
    real = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    real[1, ..., 6:] = False
    expected = attend(q, k, v, mask=mask & real, impl="reference")
    assert gap(attend(q, k, v, mask=mask & real), expected) < 1e-5
    with pytest.raises(OptionError, match="padding holds for queries and keys alike, but there are 5 and 9"):
        attend(q, k, v, padding=real[:, 0, 0])
    assert gap(expected[1], attend(q, k[:, :, :6], v[:, :, :6], mask=mask[:, :, :, :6], impl="reference")[1]) < 1e-6


@pytest.mark.parametrize("impl", ["reference", "dense", "chunked", "auto"])
def test_a_mask_of_keys_alone(impl: str) -> None:
    q, _, _ = inputs(2, 3, 700)
    _, k, v = inputs(2, 3, 9)
    real = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    real[1, ..., 6:] = False
    found = attend(q, k, v, mask=real, impl=impl)
    assert gap(found[1], attend(q, k[:, :, :6], v[:, :, :6], impl="reference")[1]) < 1e-5


def test_documents_equal_single_documents() -> None:
    q, k, v = inputs(1, 2, 30)
    documents = torch.tensor([[0] * 12 + [1] * 18])
    found = attend(q, k, v, "window(3) | global(1)", documents=documents)
    for part in (slice(0, 12), slice(12, 30)):
        alone = attend(q[:, :, part], k[:, :, part], v[:, :, part], "window(3) | global(1)", impl="reference")
        assert gap(found[:, :, part], alone) < 1e-5


def test_extra_global_tokens() -> None:
    q, k, v = inputs(1, 2, 30)
    extra = torch.zeros(1, 30, dtype=torch.bool)
    extra[0, 17] = True
    found = attend(q, k, v, "window(3)", global_tokens=extra)
    assert gap(found, attend(q, k, v, "window(3) | global(positions=[17])", impl="reference")) < 1e-5


@pytest.mark.parametrize("impl", ["auto", "dense", "gathered"])
def test_documents_and_extra_globals_together(impl: str) -> None:
    """Packed texts of all lengths, padding behind them, extra global tokens in some; the oracle is each text alone."""
    q, k, v = inputs(2, 2, 150)
    documents = torch.tensor([[3] * 90 + [1] + [7] * 40 + [2] * 19, [0] * 10 + [1] * 60 + [2] * 80])
    padding = torch.ones(2, 150, dtype=torch.bool)
    padding[1, 120:] = False
    extra = torch.zeros(2, 150, dtype=torch.bool)
    extra[0, 40] = extra[0, 140] = extra[1, 69] = True
    pattern = "window(4) | global(1)"
    found = attend(q, k, v, pattern, padding=padding, documents=documents, global_tokens=extra, impl=impl)
    for row, start, stop in (
        (0, 0, 90),
        (0, 90, 91),
        (0, 91, 131),
        (0, 131, 150),
        (1, 0, 10),
        (1, 10, 70),
        (1, 70, 120),
    ):
        part = slice(start, stop)
        alone = attend(
            q[row : row + 1, :, part],
            k[row : row + 1, :, part],
            v[row : row + 1, :, part],
            pattern,
            global_tokens=extra[row : row + 1, part],
            impl="reference",
        )
        assert gap(found[row : row + 1, :, part], alone) < 1e-5
    assert not found[1, :, 120:].any()
    expected = attend(q, k, v, pattern, padding=padding, documents=documents, global_tokens=extra, impl="reference")
    wanted, got = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (expected, found))
    assert all(gap(a, b) < 1e-4 for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("impl", ["auto", "reference", "dense", "gathered", "chunked"])
@pytest.mark.parametrize("masked", [False, True])
def test_random_blocks_go_by_each_documents_own_length(impl: str, masked: bool) -> None:
    """Padding may reuse a number, and usually does: 0."""
    q, k, v = inputs(2, 2, 400)
    documents = torch.zeros(2, 400, dtype=torch.int64)
    documents[0, 150:] = 1
    documents[1, 150:300] = 1
    padding = torch.arange(400) < torch.tensor([[400], [300]])
    mask = torch.ones(1, 1, 400, 400, dtype=torch.bool) if masked else None
    if masked and impl in ("gathered", "chunked"):
        with pytest.raises(OptionError, match=r"general mask|no mask beside documents"):
            attend(q, k, v, "random(16)", documents=documents, padding=padding, mask=mask, impl=impl)
        return
    found = attend(q, k, v, "random(16)", documents=documents, padding=padding, mask=mask, impl=impl)
    for row, start, stop in ((0, 0, 150), (0, 150, 400), (1, 0, 150), (1, 150, 300)):
        part = (slice(row, row + 1), slice(None), slice(start, stop))
        assert gap(found[part], attend(q[part], k[part], v[part], "random(16)", impl="reference")) < 1e-5
    assert not found[1, :, 300:].any()


@pytest.mark.parametrize("impl", ["auto", "reference", "dense", "gathered", "chunked", "flex"])
@pytest.mark.parametrize("pattern", ["window(5)", "random(8)", "by_length({9: full, inf: window(3)})", "bigbird(8)"])
@pytest.mark.parametrize(("rows", "tokens"), [(0, 12), (2, 0)])
def test_nothing_gives_nothing(impl: str, pattern: str, rows: int, tokens: int) -> None:
    q = torch.zeros(rows, 2, tokens, 16, requires_grad=True)
    padding = torch.ones(rows, tokens, dtype=torch.bool)
    out = attend(q, q, q, pattern, padding=padding, impl=impl)
    assert out.shape == q.shape
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None


def test_nothing_to_choose_from_and_nothing_to_attend_to() -> None:
    q = torch.randn(1, 2, 5, 8)
    for pattern in ("topk(64)", "lsh(8)", "nystrom(4)"):
        assert attend(q[:0], q[:0], q[:0], pattern).shape == (0, 2, 5, 8)
        assert attend(q[:, :, :0], q[:, :, :0], q[:, :, :0], pattern).shape == (1, 2, 0, 8)
    out, weights = attend(q, q[:, :, :0], q[:, :, :0], return_weights=[1])
    assert not out.any()
    assert weights.shape == (1, 1, 5, 0)


@pytest.mark.parametrize("impl", ["auto", "reference", "dense", "gathered", "chunked"])
def test_autocast_changes_no_dtype(impl: str) -> None:
    q, k, v = (x.detach() for x in inputs(1, 2, 300))
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(q, k, v, "window(9)", impl=impl)
    assert found.dtype is torch.float32
    assert gap(found, attend(q, k, v, "window(9)", impl="reference")) < 1e-5


@pytest.mark.parametrize("impl", ["auto", "reference", "dense", "chunked"])
def test_left_padding_goes_with_masks_documents_and_weights(impl: str) -> None:
    """The same texts, padded on the right, are the oracle."""
    pattern = "window(9) | global(1)"
    q, k, v = (x.detach() for x in inputs(2, 2, 60))
    right = torch.arange(60) < torch.tensor([[60], [41]])
    documents = torch.tensor([[0] * 25 + [1] * 35, [0] * 30 + [1] * 11 + [0] * 19])
    mask = torch.rand(2, 2, 60, 60, generator=torch.Generator().manual_seed(0)) > 0.3

    def moved(x: Tensor, *dims: int) -> Tensor:
        """Move the second text, which is the shorter one, to the right."""
        return torch.stack([x[0], torch.roll(x[1], (19,) * len(dims), dims)])

    turned = moved(q, 1), moved(k, 1), moved(v, 1)
    for here, there in (
        ({"mask": mask}, {"mask": moved(mask, 1, 2)}),
        ({"mask": mask[:, :, :1]}, {"mask": moved(mask[:, :, :1], 2)}),
        ({"documents": documents}, {"documents": moved(documents, 0)}),
    ):
        expected = attend(q, k, v, pattern, padding=right, impl="reference", **here)  # type: ignore[call-overload]
        found = attend(*turned, pattern, padding=right.flip(1), impl=impl, **there)  # type: ignore[call-overload]
        assert gap(found, moved(expected, 1)) < 1e-5
    if impl in ("auto", "reference"):
        _, weights = attend(q, k, v, pattern, padding=right, return_weights=True)
        _, found = attend(
            turned[0], turned[1], turned[2], pattern, padding=right.flip(1), return_weights=True, impl=impl
        )
        assert gap(found, moved(weights, 1, 2)) < 1e-5


def test_weights_of_padding_are_zero() -> None:
    q, k, v = inputs(2, 2, 40)
    padding = torch.arange(40) < torch.tensor([[40], [25]])
    _, weights = attend(q, k, v, "window(9)", padding=padding, return_weights=True)
    assert not weights[1, :, 25:].any()


def test_auto_leaves_what_reaches_over_the_whole_text_to_dense() -> None:
    """Blocks by number, each with its own mask, cost more than they save; and finding that out must cost nothing."""
    for pattern in ("causal", "prefix(64)", "blocks(600)"):
        assert choose(Request(*inputs(1, 12, 2048), pattern=parse(pattern), scale=1.0)).impl == "dense"
        assert cuts._kept.get((parse(pattern), 2048, torch.float32, torch.device("cpu"))) is None


def test_packed_documents_choose_by_their_own_length() -> None:
    q, k, v = inputs(1, 2, 60)
    documents = torch.tensor([[0] * 12 + [1] * 48])
    pattern = "by_length({20: full, inf: window(3)})"
    found = attend(q, k, v, pattern, documents=documents)
    for part, plain in ((slice(0, 12), "full"), (slice(12, 60), "window(3)")):
        assert gap(found[:, :, part], attend(q[:, :, part], k[:, :, part], v[:, :, part], plain)) < 1e-5


def test_heads_equal_heads_by_themselves() -> None:
    q, k, v = inputs(2, 6, 70)
    padding = torch.arange(70) < torch.tensor([[70], [33]])
    found = attend(q, k, v, "heads({1: full, 3: blocks(8), 4: full, inf: window(2)})", padding=padding)
    for head, plain in enumerate(("full", "blocks(8)", "blocks(8)", "full", "window(2)", "window(2)")):
        one = slice(head, head + 1)
        assert gap(found[:, one], attend(q[:, one], k[:, one], v[:, one], plain, padding=padding)) < 1e-5
    mask = torch.rand(1, 6, 70, 70) > 0.3
    _, weights = attend(q, k, v, "heads({3: full, inf: window(2)})", mask=mask, return_weights=True)
    assert weights.shape == (2, 6, 70, 70)
    assert not (weights * ~mask).any()


def test_random_blocks_go_by_each_texts_own_length() -> None:
    q, k, v = inputs(2, 2, 200)
    padding = torch.arange(200) < torch.tensor([[200], [90]])
    for impl in ("reference", "dense", "gathered"):
        found = attend(q, k, v, "random(16, seed=5)", padding=padding, impl=impl)
        alone = attend(q[1:, :, :90], k[1:, :, :90], v[1:, :, :90], "random(16, seed=5)", impl="reference")
        assert gap(found[1:, :, :90], alone) < 1e-5


def test_weights_are_returned_by_the_reference() -> None:
    q, k, v = inputs(1, 2, 12)
    out, weights = attend(q, k, v, "window(2)", return_weights=True)
    assert gap(weights @ v, out) < 1e-5
    assert (weights[0, 0][~torch.from_numpy(Window(2).mask(12).copy())] == 0).all()


def test_dropout_only_while_training() -> None:
    q, k, v = inputs(1, 2, 300)
    calm = attend(q, k, v, "window(5)", dropout=0.5)
    assert torch.equal(calm, attend(q, k, v, "window(5)"))
    torch.manual_seed(0)
    assert not torch.equal(calm, attend(q, k, v, "window(5)", dropout=0.5, training=True))


def test_by_length_picks_by_real_tokens() -> None:
    q, k, v = inputs(3, 2, 60)
    padding = torch.zeros(3, 60, dtype=torch.bool)
    for row, length in enumerate((60, 20, 21)):
        padding[row, :length] = True
    found = attend(q, k, v, "by_length({20: full, inf: window(4)})", padding=padding)
    for row, length, pattern in ((0, 60, "window(4)"), (1, 20, "full"), (2, 21, "window(4)")):
        a, b, c = (x[row : row + 1, :, :length] for x in (q, k, v))
        assert gap(found[row : row + 1, :, :length], attend(a, b, c, pattern, impl="reference")) < 1e-5
        assert (found[row, :, length:] == 0).all()


def test_auto_tells_its_choice() -> None:
    long = Request(*inputs(1, 1, 4096, 4), pattern=parse("window(128) | global(1)"), scale=1.0)
    short = Request(*inputs(1, 1, 256, 4), pattern=parse("window(128) | global(1)"), scale=1.0)
    assert choose(long).impl == "gathered"
    assert choose(short).impl == "dense"
    assert "pairs" in choose(long).reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"impl": "fast"}, "unknown impl 'fast'; did you mean 'flash'"),
        ({"pattern": "full", "impl": "gathered"}, "has nothing to leave out of full attention"),
        ({"padding": torch.ones(1, 5)}, "padding must be bool with True = real token, got torch.float32"),
        ({"padding": torch.ones(1, 5, dtype=torch.bool)}, r"padding must have shape \(batch, tokens\) = \(1, 6\)"),
        ({"padding": torch.tensor([[True, False, True, True, True, True]])}, "padding mask has a hole in row 0"),
        ({"mask": torch.zeros(1, 1, 6, 6)}, "mask must be bool .* convert it with from_zero_one or from_additive"),
        (
            {"padding": torch.full((1, 6), -1e20).half()},
            "padding must be bool with True = real token, got torch.float16",
        ),
        ({"mask": torch.ones(1, 1, 5, 6, dtype=torch.bool)}, r"\(1\|1, 1\|1, 6\|1, 6\), got torch.bool \(1, 1, 5, 6\)"),
        ({"mask": torch.ones(1, 1, 6, 6, dtype=torch.bool), "impl": "gathered"}, "takes neither a general mask"),
        (
            {"documents": torch.zeros(1, 3, dtype=torch.int64)},
            r"documents must be torch.int64 \(batch, tokens\) = \(1, 6\)",
        ),
        ({"documents": torch.zeros(1, 6)}, r"documents must be torch.int64 .* got torch.float32"),
        ({"global_tokens": torch.zeros(1, 6)}, r"global_tokens must be torch.bool .* got torch.float32"),
        ({"dropout": 2.0}, "dropout must be at least 0 and below 1, got 2.0"),
        ({"return_weights": True, "impl": "dense"}, "does not return weights"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"pattern": "window(2)", **change}
    with pytest.raises(OptionError, match=message):
        attend(*inputs(1, 1, 6), **arguments)  # type: ignore[call-overload]


def test_refused_shapes_and_patterns() -> None:
    q, k, v = inputs(1, 1, 6)
    with pytest.raises(PatternError, match=r"is for self-attention, but there are 5 queries and 6 keys"):
        attend(q[:, :, :5], k, v, "window(2)")
    with pytest.raises(OptionError, match="must agree"):
        attend(q, k, v[:, :, :5])
    with pytest.raises(OptionError, match=r"must have 4 dimensions \(batch, heads, tokens, head dim\), got 3, 4 and 4"):
        attend(q[0], k, v)
    with pytest.raises(OptionError, match=r"must have one dtype, got torch.float32, torch.float32, torch.bfloat16"):
        attend(q, k, v.bfloat16())
    with pytest.raises(OptionError, match="must be on one device, got cpu, meta, meta"):
        attend(q, k.to("meta"), v.to("meta"))
    with pytest.raises(OptionError, match=r"must be floating point numbers, got torch\.int64"):
        attend(q.long(), k.long(), v.long())
    with pytest.raises(OptionError, match=r"float16 is for GPUs; on a CPU convert to float32, or to bfloat16"):
        attend(q.half(), k.half(), v.half())
    with pytest.raises(OptionError, match=r"need heads with numbers in them, got \(1, 1, 6, 0\)"):
        attend(q[..., :0], k[..., :0], v[..., :0])
    for name, elsewhere in (
        ("padding", torch.ones(1, 6, dtype=torch.bool)),
        ("mask", torch.ones(1, 1, 6, 6, dtype=torch.bool)),
        ("documents", torch.zeros(1, 6, dtype=torch.int64)),
        ("global_tokens", torch.zeros(1, 6, dtype=torch.bool)),
    ):
        with pytest.raises(OptionError, match=rf"{name} must be on the device of q, cpu, got meta"):
            attend(q, k, v, "full", **{name: elsewhere.to("meta")})  # type: ignore[call-overload]
        with pytest.raises(OptionError, match=rf"{name} must be a tensor, got list"):
            attend(q, k, v, "full", **{name: [True] * 6})  # type: ignore[call-overload]
    for kept in (
        {"padding": Padding.read(torch.ones(2, 6, dtype=torch.bool), 2, 6)},
        {"documents": Documents.read(torch.zeros(1, 7, dtype=torch.int64), 1, 7)},
    ):
        with pytest.raises(OptionError, match=r"was read for \(batch, tokens\) = \((2, 6|1, 7)\), got q of \(1, 6\)"):
            attend(q, k, v, "full", **kept)
    both, real = inputs(2, 1, 6), torch.arange(6) < torch.tensor([[2], [6]])
    with pytest.raises(OptionError, match="weights of a batch whose rows differ in pattern"):
        attend(*both, "by_length({3: full, inf: window(2)})", padding=real, return_weights=True)
    with pytest.raises(PatternError, match="depends on the layer"):
        attend(q, k, v, "every(2, full, else_=window(2))")
    packed = torch.zeros(1, 6, dtype=torch.int64)
    with pytest.raises(PatternError, match="by_length on packed documents goes with neither mask nor weights"):
        attend(q, k, v, "by_length({3: full, inf: window(2)})", documents=packed, return_weights=True)
    every_pair = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    with pytest.raises(OptionError, match="takes neither a general mask"):
        attend(q, k, v, "window(2)", documents=packed, mask=every_pair, impl="gathered")
    with pytest.raises(OptionError, match="reads strides only on CPUs, in float32 or bfloat16, without dropout"):
        attend(q.double(), k.double(), v.double(), "strided(2)", impl="gathered")


def test_mask_conversions() -> None:
    assert from_zero_one(torch.tensor([1, 0])).tolist() == [True, False]
    assert from_additive(torch.tensor([0.0, -1e20])).tolist() == [True, False]
    assert from_additive(torch.tensor([0.0, -1e20]).half()).tolist() == [True, False]  # there it is minus infinity
    with pytest.raises(OptionError, match="holds only 0 and 1"):
        from_zero_one(torch.tensor([0.0, -1e9]))
    with pytest.raises(OptionError, match="carry no bias"):
        from_additive(torch.tensor([0.0, 0.5]))


@pytest.mark.parametrize("fused", [True, False])
def test_self_attention_module(fused: bool) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(32, 4, "window(4) | global(1)", fused=fused).eval()
    x = torch.randn(2, 50, 32)
    padding = torch.ones(2, 50, dtype=torch.bool)
    padding[1, 30:] = False
    both = layer(x, padding=padding)
    assert gap(both[1:, :30], layer(x[1:, :30])) < 1e-5
    cross = SelfAttention(32, 4, fused=fused).eval()
    context = torch.randn(2, 7, 32)
    assert cross(x, context).shape == x.shape
    assert gap(cross(x), cross(x, x.clone())) < 1e-5
    real = torch.ones(2, 50, dtype=torch.bool)
    real[1, 30:] = False
    assert (
        gap(
            cross(x, context_of_same_length := x.flip(1), padding=real)[1],
            cross(x[1:], context_of_same_length[1:, :30])[0],
        )
        < 1e-5
    )
    assert "window(4)" in repr(layer)
    with pytest.raises(OptionError, match="width must be a multiple of heads, got 32 and 5"):
        SelfAttention(32, 5)


def test_public_name_and_capabilities() -> None:
    assert louver.attend is attend
    assert {name: (b.any_mask, b.documents, b.weights) for name, b in BACKENDS.items()} == {
        "reference": (True, True, True),
        "dense": (True, True, False),
        "gathered": (False, False, False),
        "chunked": (True, False, True),
        "flex": (False, False, False),
        "flash": (False, False, False),
        "selected": (False, False, False),
        "lowrank": (False, False, False),
    }


def test_gathered_reads_no_block_without_a_pair() -> None:
    """`Blocks` reaches farther at one end of a block than at the other: a band would read five blocks for three."""
    plan = gathered._make_plan(parse("blocks(128)"), 1024, torch.device("cpu"))
    assert plan.table_NW is not None
    assert plan.table_NW.shape == (8, 3)
    assert gathered._make_plan(parse("window(128)"), 1024, torch.device("cpu")).band == (1, 1)
