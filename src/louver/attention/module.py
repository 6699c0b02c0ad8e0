"""`SelfAttention`: `attend` with its projections, for one's own models.

Shape letters: B batch, T query tokens, S key tokens, E model width, H heads, D numbers a head.
"""

from __future__ import annotations

from torch import Tensor, nn

from louver.attention.attend import attend
from louver.attention.documents import Documents
from louver.errors import OptionError
from louver.patterns import Pattern, parse


class SelfAttention(nn.Module):
    """Multi-head attention along a pattern (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: numbers a token, E; a multiple of `heads`.
        heads: attention heads.
        pattern: a pattern or its string.
        fused: one projection for q, k and v (faster) instead of three (as in BERT's checkpoints).
        bias: whether the projections add one.
        dropout: probability that a weight is dropped while training.
        impl: backend, as in `attend`.

    Raises:
        OptionError: if `heads` does not divide `width`.

    Example:
        >>> layer = SelfAttention(64, heads=4, pattern="window(128) | global(1)")
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        pattern: Pattern | str = "full",
        *,
        fused: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        if width % heads:
            raise OptionError(f"width must be a multiple of heads, got {width} and {heads}")
        self.heads = heads
        self.pattern = parse(pattern)
        self.dropout = dropout
        self.impl = impl
        self.projections = nn.ModuleList(
            [nn.Linear(width, 3 * width, bias)] if fused else [nn.Linear(width, width, bias) for _ in range(3)]
        )
        self.output = nn.Linear(width, width, bias)

    def forward(
        self,
        x_BTE: Tensor,
        context_BSE: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        mask: Tensor | None = None,
        documents: Tensor | Documents | None = None,
        global_tokens: Tensor | None = None,
    ) -> Tensor:
        """Attend from `x_BTE` to itself, or to `context_BSE` (cross-attention, for `Full` and masks).

        Args:
            x_BTE: tokens that ask.
            context_BSE: tokens that answer; `x_BTE` if None.
            padding: bool over the answering tokens, True = real.
            mask: see `attend`.
            documents: see `attend`.
            global_tokens: see `attend`.
        """
        context_BSE = x_BTE if context_BSE is None else context_BSE
        if len(self.projections) == 3:
            q, k, v = (f(x) for f, x in zip(self.projections, (x_BTE, context_BSE, context_BSE), strict=True))
        elif context_BSE is x_BTE:
            q, k, v = self.projections[0](x_BTE).chunk(3, -1)
        else:
            fused = self.projections[0]
            assert isinstance(fused, nn.Linear)
            width = x_BTE.shape[-1]
            rest = fused.bias[width:] if fused.bias is not None else None
            first = fused.bias[:width] if fused.bias is not None else None
            q = nn.functional.linear(x_BTE, fused.weight[:width], first)
            k, v = nn.functional.linear(context_BSE, fused.weight[width:], rest).chunk(2, -1)
        if padding is not None and context_BSE is not x_BTE:  # it says which keys are real, not which queries
            keys = padding[:, None, None, :].expand(-1, 1, x_BTE.shape[1], -1)
            mask, padding = keys if mask is None else mask & keys, None
        q_BHTD, k_BHSD, v_BHSD = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        out_BHTD = attend(
            q_BHTD,
            k_BHSD,
            v_BHSD,
            self.pattern,
            padding=padding,
            mask=mask,
            documents=documents,
            global_tokens=global_tokens,
            dropout=self.dropout,
            training=self.training,
            impl=self.impl,
        )
        result: Tensor = self.output(out_BHTD.transpose(1, 2).flatten(2))
        return result

    def extra_repr(self) -> str:
        """Show the pattern in the module's printout."""
        return f"heads={self.heads}, pattern={str(self.pattern)!r}, impl={self.impl!r}"
