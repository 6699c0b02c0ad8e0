"""What chunked, flex, flash, selected and lowrank do beside the reference, and what each refuses."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from louver.attention import Linformer, Padding, Request, attend, choose, chunked, cost, cuts, flash, flex, selected
from louver.errors import OptionError, PatternError
from louver.patterns import Nystrom, TopK, parse


def tensors(
    batch: int, heads: int, tokens: int, width: int = 8, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q, k, v = (torch.randn(batch, heads, tokens, width, generator=generator).to(dtype) for _ in range(3))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def gap(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().float(), expected.detach().float()
    return float(((found - expected).abs() / (1 + expected.abs())).max())


def gradients(out: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.float().square().sum(), inputs)


def two_rows(tokens: int) -> Tensor:
    return torch.arange(tokens) < torch.tensor([[tokens], [max(1, tokens // 2)]])


@pytest.mark.parametrize(
    "pattern", ["full", "window(20) | global(2)", "causal", "strided(16)", "bigbird(32)", "global(positions=[600])"]
)
@pytest.mark.parametrize("tokens", [5, 513, 1100])
def test_chunked_equals_the_reference(pattern: str, tokens: int) -> None:
    inputs = tensors(2, 2, tokens)
    expected, found = (attend(*inputs, pattern, padding=two_rows(tokens), impl=i) for i in ("reference", "chunked"))
    assert gap(found, expected) < 1e-5
    wanted, got = (gradients(out, inputs) for out in (expected, found))
    assert all(gap(a, b) < 1e-4 for a, b in zip(got, wanted, strict=True))


def test_chunked_takes_general_masks_and_cross_attention() -> None:
    q, _, _ = tensors(2, 3, 700)
    _, k, v = tensors(2, 3, 90)
    mask = torch.rand(2, 1, 700, 90) > 0.4
    expected, found = (attend(q, k, v, mask=mask, impl=impl) for impl in ("reference", "chunked"))
    assert gap(found, expected) < 1e-5


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor that anything makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, Tensor):
                self.numbers = max(self.numbers, one.numel())
        return found


def test_chunked_holds_one_chunk_of_scores() -> None:
    inputs = tensors(1, 2, 4096)
    with Largest() as seen:
        out = attend(*inputs, "window(50) | global(1)", impl="chunked")
        gradients(out, inputs)
    assert seen.numbers <= chunked.CHUNK * 4096 * 2
    assert seen.numbers < 4096 * 4096 // 2


def test_weights_of_chosen_heads() -> None:
    q, k, v = tensors(2, 4, 600)
    padding = two_rows(600)
    out, weights = attend(q, k, v, "window(20)", padding=padding, return_weights=[3, 1])
    _, every = attend(q, k, v, "window(20)", padding=padding, return_weights=True, impl="reference")
    assert weights.shape == (2, 2, 600, 600)
    assert gap(weights, every[:, [3, 1]]) < 1e-6
    assert gap(out, attend(q, k, v, "window(20)", padding=padding, impl="reference")) < 1e-5
    _, same = attend(q, k, v, "window(20)", padding=padding, return_weights=[3, 1], impl="reference")
    assert gap(same, weights) < 1e-6
    with pytest.raises(OptionError, match=r"return_weights is a bool or names heads within 0…3, got \[4\]"):
        attend(q, k, v, return_weights=[4])
    with pytest.raises(OptionError, match=r"weights of chosen heads do not go with heads"):
        attend(q, k, v, "heads({1: full, inf: window(3)})", return_weights=[1])


@pytest.mark.parametrize("text", ["window(200) | global(2)", "bigbird(64)", "blocks(128)", "full", "strided(100)"])
def test_flex_reads_every_block_that_holds_a_pair_and_masks_what_it_must(text: str) -> None:
    """The block table by itself, without compiling anything: read as FlexAttention reads it, it is the pattern."""
    pattern, tokens = parse(text), 700
    counts, numbers, full_counts, full_numbers = flex._blocks(pattern, tokens, tokens, 6, torch.device("cpu"))
    masked = torch.zeros(768, 768, dtype=torch.bool)
    whole = torch.zeros(768, 768, dtype=torch.bool)
    for row in range(6):
        here = slice(row * 128, (row + 1) * 128)
        for target, count, number in ((masked, counts, numbers), (whole, full_counts, full_numbers)):
            for block in number[0, 0, row, : int(count[0, 0, row])].tolist():
                target[here, block * 128 : (block + 1) * 128] = True
    place = torch.arange(768)
    rule = flex._allows(pattern, tokens, torch.tensor([tokens]), torch.device("cpu"))
    allowed = rule(torch.tensor(0), torch.tensor(0), place[:, None], place[None, :]) & (place < tokens)[:, None]
    assert not (masked & whole).any()
    assert torch.equal(((masked & allowed) | whole)[:tokens, :tokens], torch.from_numpy(pattern.mask(tokens).copy()))


@pytest.mark.parametrize("pattern", ["window(40) | global(1)", "bigbird(32)", "full", "blocks(128)"])
def test_flex_equals_the_reference(pattern: str) -> None:
    """Really compiled, at a second length for any length; random blocks reckon with it; whole blocks meet padding."""
    for tokens, rows in ((300, 2), (411, 3)):
        q, k, v = tensors(rows, 2, tokens, 16)
        padding = torch.arange(tokens) < torch.tensor([[tokens], [170], [1]])[:rows]
        with torch.no_grad():  # what could have a gradient is taken, where none is asked for
            found = attend(q, k, v, pattern, padding=padding, impl="flex")
        assert gap(found, attend(q, k, v, pattern, padding=padding, impl="reference")) < 1e-5


@pytest.mark.parametrize(
    ("impl", "change", "message"),
    [
        ("flex", {}, "impl 'flex' computes no gradients on CPUs; use 'dense' or 'auto'"),
        ("flex", {"dropout": 0.1, "training": True}, "impl 'flex' has no dropout on weights"),
        ("flash", {}, "impl 'flash' needs the package flash-attn"),
        ("selected", {}, r"impl 'selected' chooses by content; give one topk\(…\) or lsh\(…\)"),
        ("lowrank", {}, r"impl 'lowrank' approximates all pairs: it wants nystrom\(…\) by itself, not window\(3\)"),
        ("dense", {"pattern": "topk(64)"}, r"computes masks of positions, and topk\(64\) has none; use 'auto'"),
        ("gathered", {"pattern": "nystrom(8)"}, r"computes masks of positions, and nystrom\(8\) has none"),
        ("lowrank", {"pattern": "nystrom(8)", "dropout": 0.5, "training": True}, "'lowrank' has no dropout on weights"),
    ],
)
def test_refusals(impl: str, change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"pattern": "window(3)", **change}
    with pytest.raises(OptionError, match=message):
        attend(*tensors(1, 2, 20), impl=impl, **arguments)


def test_flex_refuses_what_it_cannot_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.detach() for x in tensors(1, 2, 20))
    with pytest.raises(OptionError, match=r"impl 'flex' does not compute in torch.float64"):
        attend(q.double(), k.double(), v.double(), "window(3)", impl="flex")
    request = Request(q, k, v, parse("window(3)"), 1.0)
    assert flex.refusal(request) is None
    meta = [x.to("meta") for x in (q, k, v)]
    for_gpus = Request(meta[0], meta[1], meta[2], parse("window(3)"), 1.0)
    assert flex.refusal(for_gpus) == "takes head dims from 16 on CUDA, not 8"
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(OptionError, match="needs a C\\+\\+ compiler on CPUs"):
        attend(q, k, v, "window(3)", impl="flex")


def test_flash_gets_the_window_and_refuses_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn runs on CUDA alone; what louver hands to it is seen by a stand-in."""
    assert flash.window_of(parse("full")) == (-1, -1)
    assert flash.window_of(parse("causal")) == (-1, 0)
    assert flash.window_of(parse("window(left=7, right=3)")) == (7, 3)
    assert flash.window_of(parse("causal & window(9)")) == (9, 0)
    assert flash.window_of(parse("window(9) | global(1)")) is None
    assert flash.window_of(parse("window(9, dilation=2)")) is None
    assert flash.window_of(parse("causal & blocks(8)")) is None
    seen: dict[str, Any] = {}

    def stand_in(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        seen.update(options)
        back = [x.transpose(1, 2) for x in (q, k, v)]
        return attend(back[0], back[1], back[2], "causal & window(9)", impl="reference").transpose(1, 2)

    module = types.ModuleType("flash_attn")
    module.flash_attn_func = stand_in  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(flash, "find_spec", lambda _: module)
    q, k, v = tensors(1, 2, 40)
    request = Request(q, k, v, parse("causal & window(9)"), 0.3)
    out, _ = flash.compute(request)
    assert (seen["window_size"], seen["softmax_scale"], seen["dropout_p"]) == ((9, 0), 0.3, 0.0)
    assert out.shape == q.shape
    assert "computes float16 and bfloat16 on CUDA, not torch.float32 on cpu" in (flash.refusal(request) or "")


def selection(request: Request) -> Tensor:
    """Return what a selector chose as a mask of all pairs, pair by pair."""
    selector, rest = selected.split(request.pattern)
    batch, heads, tokens, _ = request.q_BHTD.shape
    found = torch.zeros(batch, heads, tokens, tokens, dtype=torch.bool)
    if isinstance(selector, TopK):
        numbers = selected.chosen_blocks(request, selector, rest)
        count = numbers.shape[2]
        blocks = torch.zeros(batch, heads, count, count + 1, dtype=torch.bool)
        blocks.scatter_(3, torch.where(numbers < 0, count, numbers), True)
        whole = blocks[..., :count].repeat_interleave(selector.block, 2).repeat_interleave(selector.block, 3)
        found = whole[..., :tokens, :tokens]
    else:
        for number in range(selector.rounds):  # type: ignore[union-attr]
            one = selected.hashed_round(request, selector, number)  # type: ignore[arg-type]
            for b, h, c in np.ndindex(*one.queries_BHCM.shape[:3]):
                queries, keys = one.queries_BHCM[b, h, c], one.keys_BHCK[b, h, c][one.there_BHCK[b, h, c]]
                same = one.query_bucket_BHT[b, h, queries][:, None] == one.key_bucket_BHT[b, h, keys]
                found[b, h, queries[:, None], keys] |= same
    places = torch.arange(tokens)
    allowed: Tensor = rest.allows(places[:, None], places[None, :], tokens)
    return found & allowed


@pytest.mark.parametrize(
    "pattern",
    [
        "topk(128, block=32)",
        "topk(64, rank=4, block=16) & causal",
        "topk(96, block=32) & (window(40) | global(1))",
        "lsh(8, width=32)",
        "lsh(16, rounds=3, width=16) & window(100)",
    ],
)
@pytest.mark.parametrize("tokens", [7, 300])
def test_selectors_are_exact_over_what_they_choose(pattern: str, tokens: int) -> None:
    q, k, v = tensors(2, 2, tokens)
    padding = two_rows(tokens)
    request = Request(q, k, v, parse(pattern), 8**-0.5, padding=Padding.read(padding, 2, tokens))
    assert choose(request).impl == "selected"
    found = attend(q, k, v, pattern, padding=padding)
    expected = attend(q, k, v, mask=selection(request), padding=padding, impl="reference")
    assert gap(found, expected) < 1e-5
    wanted, got = (gradients(out, (q, k, v)) for out in (expected, found))
    assert all(gap(a, b) < 1e-4 for a, b in zip(got, wanted, strict=True))


def test_top_k_takes_the_blocks_with_the_largest_products() -> None:
    q, k, v = (x.detach() for x in tensors(1, 1, 128))
    pattern = TopK(k=32, rank=8, block=16)
    found = selected.chosen_blocks(Request(q, k, v, pattern, 1.0), pattern, parse("full"))
    means_q, means_k = (x[0, 0].view(8, 16, 8).double().mean(1) for x in (q, k))
    products = means_q @ means_k.T  # rank 8 of 8: nothing is lost
    for block in range(8):
        others = products[block].clone()
        others[block] = float("-inf")
        assert set(found[0, 0, block].tolist()) == {block, int(others.argmax())}


@pytest.mark.parametrize("pattern", ["topk(64, block=32) & causal", "topk(128) & causal & window(200)", "causal"])
def test_what_is_causal_does_not_see_the_future(pattern: str) -> None:
    q, k, v = (x.detach() for x in tensors(1, 2, 300))
    before = attend(q, k, v, pattern)
    for x in (q, k, v):
        x[:, :, 170:] = torch.randn(1, 2, 130, 8)
    assert gap(attend(q, k, v, pattern)[:, :, :170], before[:, :, :170]) < 1e-5


def test_lsh_cannot_be_causal_and_says_so() -> None:
    with pytest.raises(OptionError, match=r"sorts whole texts in lsh\(…\).*; give topk\(…\) & causal"):
        attend(*tensors(1, 2, 100), "lsh(8) & causal")
    with pytest.raises(OptionError, match=r"give one topk\(…\) or lsh\(…\), alone or met with patterns"):
        attend(*tensors(1, 2, 100), "topk(64) & lsh(4)")


@pytest.mark.parametrize("pattern", ["lsh(8)", "lsh(16, rounds=4, width=16)", "topk(64, block=32)", "nystrom(16)"])
@pytest.mark.parametrize("real", [1, 70, 200, 321])
def test_what_chooses_by_content_gives_the_same_alone_and_padded(pattern: str, real: int) -> None:
    q, k, v = (x.detach() for x in tensors(2, 2, 400))
    padding = torch.arange(400) < torch.tensor([[400], [real]])
    found = attend(q, k, v, pattern, padding=padding)[1:, :, :real]
    assert gap(found, attend(q[1:, :, :real], k[1:, :, :real], v[1:, :, :real], pattern)) < 1e-5


def test_lsh_finds_what_is_near() -> None:
    """Keys equal to their queries are found by themselves, whatever the hash."""
    q, _, v = (x.detach() for x in tensors(1, 2, 200))
    request = Request(q, q, v, parse("lsh(8, width=64)"), 1.0)
    found = selection(request)
    assert found.diagonal(dim1=-2, dim2=-1).float().mean() > 0.9
    assert found.float().mean() < 0.5


def test_selectors_never_choose_padding() -> None:
    q, k, v = (x.detach() for x in tensors(2, 2, 200))
    padding = torch.arange(200) < torch.tensor([[200], [70]])
    for pattern in ("topk(64, block=32)", "lsh(8)"):
        found = attend(q, k, v, pattern, padding=padding)
        alone = attend(q[1:, :, :70], k[1:, :, :70], v[1:, :, :70], pattern)
        assert gap(found[1:, :, :70], alone) < 1e-5
        poisoned = v.clone()
        poisoned[1, :, 70:] = 1e6
        assert gap(attend(q, k, poisoned, pattern, padding=padding), found) < 1e-5


def test_what_joins_selectors_and_approximations_is_refused() -> None:
    q, k, v = tensors(1, 2, 20)
    for pattern in ("topk(64) | window(3)", "nystrom(4) & causal", "nystrom(4) | window(3)"):
        with pytest.raises(PatternError, match="joins what has no mask: selectors meet patterns by & alone"):
            attend(q, k, v, pattern)
    extra = torch.zeros(1, 20, dtype=torch.bool)
    for pattern in ("topk(64)", "nystrom(4)", "by_length({512: full, inf: lsh(8)})"):
        with pytest.raises(PatternError, match="has no mask that extra global tokens could join"):
            attend(q, k, v, pattern, global_tokens=extra)
    with pytest.raises(PatternError, match="chooses by content and has no mask of positions"):
        parse("topk(64)").mask(64)
    with pytest.raises(PatternError, match="approximates all pairs and has no mask"):
        parse("nystrom(4)").cost(64)


def by_definition(q: Tensor, k: Tensor, v: Tensor, landmarks: int, iterations: int) -> Tensor:
    """Nyström attention of one text in float64, landmark by landmark (Xiong et al. 2021, equations 13 and 14)."""
    q, k, v = (x.detach().double() for x in (q, k, v))
    tokens = q.shape[2]
    stretches = [[t for t in range(tokens) if t * landmarks // tokens == m] for m in range(landmarks)]
    near_q, near_k = (torch.stack([x[:, :, s].mean(2) for s in stretches], 2) for x in (q, k))
    scale = q.shape[-1] ** -0.5
    first = (q @ near_k.transpose(-1, -2) * scale).softmax(-1)
    middle = (near_q @ near_k.transpose(-1, -2) * scale).softmax(-1)
    last = (near_q @ k.transpose(-1, -2) * scale).softmax(-1)
    eye = torch.eye(landmarks, dtype=torch.float64)
    inverse = torch.empty_like(middle)
    for b, h in np.ndindex(*middle.shape[:2]):
        a = middle[b, h]
        z = a.T / (a.abs().sum(0).max() * a.abs().sum(1).max())
        for _ in range(iterations):
            z = 0.25 * z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z)))
        inverse[b, h] = z
    result: Tensor = first @ inverse @ last @ v
    return result


def test_nystrom_equals_its_definition() -> None:
    q, k, v = tensors(2, 2, 200)
    padding = torch.arange(200) < torch.tensor([[200], [110]])
    found = attend(q, k, v, "nystrom(16)", padding=padding)
    assert gap(found[:1], by_definition(q[:1], k[:1], v[:1], 16, 6)) < 1e-4
    row = slice(1, 2), slice(None), slice(0, 110)
    assert gap(found[row], by_definition(q[row], k[row], v[row], 16, 6)) < 1e-4
    assert all(g.isfinite().all() for g in gradients(found, (q, k, v)))


def test_nystrom_of_a_text_with_a_landmark_a_token_is_nearly_exact() -> None:
    q, k, v = tensors(1, 2, 20)
    found = attend(q, k, v, str(Nystrom(32, iterations=20)))
    assert gap(found, attend(q, k, v)) < 1e-4


def test_linformer_mixes_real_tokens_alone() -> None:
    torch.manual_seed(0)
    layer = Linformer(32, heads=4, length=100, keys=8).eval()
    x = torch.randn(2, 60, 32)
    padding = torch.arange(60) < torch.tensor([[60], [25]])
    found = layer(x, padding=padding)
    assert gap(found[1:, :25], layer(x[1:, :25])) < 1e-5
    assert not found[1, 25:].any()
    q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in layer.projection(x[:1]).chunk(3, -1))
    mixed_k, mixed_v = layer.key_mixtures[:60].T @ k, layer.value_mixtures[:60].T @ v
    weights = (q @ mixed_k.transpose(-1, -2) * 8**-0.5).softmax(-1)
    assert gap(found[:1], layer.output((weights @ mixed_v).transpose(1, 2).flatten(2))) < 1e-5
    with pytest.raises(OptionError, match="this Linformer reads 100 tokens, got 101; build a longer one"):
        layer(torch.randn(1, 101, 32))
    with pytest.raises(OptionError, match="pad on the right"):
        layer(x, padding=padding.flip(1))
    with pytest.raises(OptionError, match="width must be a multiple of heads, got 32 and 5"):
        Linformer(32, 5, 10, 2)
    with pytest.raises(OptionError, match="length and keys must be positive, got 0 and 2"):
        Linformer(32, 4, 0, 2)


def test_auto_goes_by_this_machines_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.detach() for x in tensors(1, 2, 1024))
    request = Request(q, k, v, parse("window(64) | global(1)"), 1.0)
    for gathered, impl in ((0.5, "gathered"), (50.0, "dense")):
        rates = cost.Rates(dense=(1.0, 1.0), gathered=(gathered, gathered), piece=1.0)
        monkeypatch.setattr(cost, "rates", lambda rates=rates: rates)
        assert choose(request).impl == impl
        assert "ms a text against" in choose(request).reason


def test_calibration_finds_the_rates_that_made_the_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Times as a machine of known rates would have them: another way to count calls and pairs would not fit."""
    monkeypatch.setenv("LOUVER_CACHE", str(tmp_path))
    true = cost.Rates(dense=(0.9, 1.5), gathered=(0.7, 1.6), piece=250_000.0)
    widths = iter((32, 64))
    cpu = torch.device("cpu")

    def times(_: Any, __: int) -> list[float]:
        width = next(widths)
        wide, narrow = (cuts.cut(parse(f"window({r})"), 2048, torch.float32, cpu) for r in (128, 2))
        sparse = [12 * w.pairs * true.gathered_pair(width) + len(w.pieces) * true.piece for w in (wide, narrow)]
        return [12 * 2048**2 * true.dense_pair(width), *sparse]

    monkeypatch.setattr(cost, "_medians", times)
    found = cost.calibrate()
    cost.rates.cache_clear()
    assert found.dense == pytest.approx(true.dense)
    assert found.gathered == pytest.approx(true.gathered)
    assert found.piece == pytest.approx(true.piece)


def test_calibration_is_kept_and_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("LOUVER_CACHE", str(tmp_path))
    cost.rates.cache_clear()
    try:
        assert cost.rates() == cost.DEFAULT
        found = cost.calibrate(rounds=1)
        assert cost.cache_file().parent == tmp_path
        assert cost.rates() == found
        assert min(*found.dense, *found.gathered, found.piece) > 0
        cost.cache_file().write_text("broken")
        cost.rates.cache_clear()
        assert cost.rates() == cost.DEFAULT
    finally:
        cost.rates.cache_clear()


@pytest.mark.parametrize("head_dim", [8, 16])
@pytest.mark.parametrize("tokens", [8, 24, 40])
def test_flex_reads_no_memory_that_nobody_wrote(head_dim: int, tokens: int) -> None:
    """torch's CPU kernel did at these sizes: wrong numbers, or none, by what the memory held."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, tokens, head_dim) for _ in range(3))
    expected = attend(q.double(), k.double(), v.double(), "window(4) | global(1)", impl="reference")
    for _ in range(3):
        spoilt = [torch.full((size,), float("nan")) for size in (64, 1024, 16384, 262144) for _ in range(4)]
        del spoilt
        found = attend(q, k, v, "window(4) | global(1)", impl="flex")
        assert found.shape == expected.shape
        assert float((found - expected).abs().max()) < 1e-5


def test_flex_compiles_the_numbers_of_a_pattern_in() -> None:
    """As arguments of the kernel their names are mixed up with those of lengths, in some processes."""
    from torch._dynamo.utils import counters

    q_BHTD = torch.randn(1, 2, 40, 24)
    for radius in (5, 7, 11):
        before = counters["stats"]["unique_graphs"]
        with torch.no_grad():
            found = attend(q_BHTD, q_BHTD, q_BHTD, f"window({radius})", impl="flex")
            wanted = attend(q_BHTD, q_BHTD, q_BHTD, f"window({radius})", impl="reference")
        assert counters["stats"]["unique_graphs"] > before
        assert float((found - wanted).abs().max()) < 1e-5
