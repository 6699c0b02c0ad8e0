"""Low-rank attention: `Nystrom` through landmarks, `Linformer` through learned projections of keys and values.

Both approximate attention over all pairs; their results are their own definitions, not exact attention's.

Shape letters: B batch, H heads, T tokens, E model width, D numbers a head; L landmarks, K projected keys.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from louver.attention.padding import Padding
from louver.attention.request import Backend, Request
from louver.errors import OptionError
from louver.patterns import Nystrom


def refusal(request: Request) -> str | None:
    """Say why there is nothing to approximate."""
    if not isinstance(request.pattern, Nystrom):
        return f"approximates all pairs: it wants nystrom(…) by itself, not {request.pattern}"
    return "has no dropout on weights; set it to 0" if request.dropout else None


def compute(request: Request) -> tuple[Tensor, None]:
    """Compute softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v (Xiong et al. 2021, equation 13)."""
    assert isinstance(request.pattern, Nystrom)
    precision = torch.promote_types(request.q_BHTD.dtype, torch.float32)
    q_BHTD, k_BHTD, v_BHTD = (x.to(precision) for x in (request.q_BHTD, request.k_BHSD, request.v_BHSD))
    batch, _, tokens, _ = q_BHTD.shape
    lengths_B = request.lengths_B
    if lengths_B is None:
        lengths_B = torch.full((batch,), tokens, device=q_BHTD.device)
    means_BLT, there_BL = _stretches(lengths_B, tokens, request.pattern.landmarks, q_BHTD.dtype)
    near_q_BHLD, near_k_BHLD = means_BLT[:, None] @ q_BHTD, means_BLT[:, None] @ k_BHTD
    no_landmark = ~there_BL[:, None, None, :]
    no_key = torch.arange(tokens, device=q_BHTD.device) >= lengths_B[:, None, None, None]

    def weights(queries: Tensor, keys: Tensor, missing: Tensor) -> Tensor:
        scores = (queries * request.scale) @ keys.transpose(-1, -2)
        return scores.masked_fill(missing, torch.finfo(scores.dtype).min).softmax(-1)

    to_landmarks_BHTL = weights(q_BHTD, near_k_BHLD, no_landmark)
    between_BHLL = weights(near_q_BHLD, near_k_BHLD, no_landmark)
    # landmarks that a short text lacks keep to themselves, so that the inverse exists
    lacking = no_landmark | no_landmark.transpose(-1, -2)
    themselves = torch.eye(request.pattern.landmarks, dtype=precision, device=q_BHTD.device)
    between_BHLL = torch.where(lacking, themselves, between_BHLL)
    to_keys_BHLT = weights(near_q_BHLD, k_BHTD, no_key)
    inverse = pseudo_inverse(between_BHLL, request.pattern.iterations)
    return (to_landmarks_BHTL @ (inverse @ (to_keys_BHLT @ v_BHTD))).to(request.v_BHSD.dtype), None


def _stretches(lengths_B: Tensor, tokens: int, landmarks: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the weights of each landmark's mean, (B, L, T), and which landmarks a text has, (B, L)."""
    place_T = torch.arange(tokens, device=lengths_B.device)
    count_B1 = lengths_B[:, None].clamp(min=1)
    own_BT = place_T * landmarks // count_B1
    # a text shorter than the landmarks gets one a token
    own_BT = torch.where(count_B1 < landmarks, place_T.expand_as(own_BT), own_BT)
    real_BT = place_T < lengths_B[:, None]
    member_BLT = (own_BT[:, None, :] == torch.arange(landmarks, device=lengths_B.device)[:, None]) & real_BT[:, None]
    sizes_BL1 = member_BLT.sum(-1, keepdim=True)
    return member_BLT.to(dtype) / sizes_BL1.clamp(min=1), sizes_BL1[..., 0] > 0


def pseudo_inverse(a_BHLL: Tensor, iterations: int) -> Tensor:
    """Approximate the pseudo-inverse of matrices of weights (Razavi et al. 2014; Xiong et al. 2021, equation 14)."""
    eye = torch.eye(a_BHLL.shape[-1], dtype=a_BHLL.dtype, device=a_BHLL.device)
    columns, rows = a_BHLL.abs().sum(-2).amax(-1), a_BHLL.abs().sum(-1).amax(-1)
    z_BHLL = a_BHLL.transpose(-1, -2) / (columns * rows)[..., None, None]
    for _ in range(iterations):
        az = a_BHLL @ z_BHLL
        z_BHLL = 0.25 * z_BHLL @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z_BHLL


class Linformer(nn.Module):
    """Multi-head self-attention to `keys` learned mixtures of all keys (Wang et al. 2020, equation 7): n · keys pairs.

    The mixtures are one matrix for keys and one for values, shared by the heads; rows of padding are left out of them.

    Args:
        width: numbers a token, E; a multiple of `heads`.
        heads: attention heads.
        length: tokens at most; the mixtures have a row for each.
        keys: mixtures, K.
        dropout: probability that a weight is dropped while training.

    Raises:
        OptionError: if a number is out of range, or a text is longer than `length`.

    Example:
        >>> Linformer(64, heads=4, length=512, keys=32)(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])
    """

    def __init__(self, width: int, heads: int, length: int, keys: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise OptionError(f"width must be a multiple of heads, got {width} and {heads}")
        if length < 1 or keys < 1:
            raise OptionError(f"length and keys must be positive, got {length} and {keys}")
        self.heads = heads
        self.dropout = dropout
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.key_mixtures = nn.Parameter(torch.randn(length, keys) * length**-0.5)
        self.value_mixtures = nn.Parameter(torch.randn(length, keys) * length**-0.5)

    def forward(self, x_BTE: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """Attend; `padding` is bool (B, T), True = real token, padded on the right."""
        batch, tokens, _ = x_BTE.shape
        if tokens > len(self.key_mixtures):
            raise OptionError(f"this Linformer reads {len(self.key_mixtures)} tokens, got {tokens}; build a longer one")
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in self.projection(x_BTE).chunk(3, -1))
        if padding is not None:
            real = Padding.read(padding, batch, tokens)
            if real.left:
                raise OptionError("Linformer's mixtures go by position; pad on the right")
            k, v = (x.masked_fill(~real.mask_BT[:, None, :, None], 0.0) for x in (k, v))
        mixed_k, mixed_v = (
            mixtures[:tokens].transpose(0, 1) @ x for mixtures, x in ((self.key_mixtures, k), (self.value_mixtures, v))
        )
        dropout = self.dropout if self.training else 0.0
        out = scaled_dot_product_attention(q, mixed_k, mixed_v, dropout_p=dropout)
        result: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return result if padding is None else result.masked_fill(~padding[..., None], 0.0)


BACKEND = Backend(compute, any_mask=False, documents=False, weights=False, refusal=refusal)
