"""How attention is computed: `attend`, the `SelfAttention` module, and the backends behind them."""

from louver.errors import need_extra

need_extra("train", "torch")

from louver.attention.attend import BACKENDS, Choice, attend, choose  # noqa: E402
from louver.attention.masks import from_additive, from_zero_one  # noqa: E402
from louver.attention.module import SelfAttention  # noqa: E402
from louver.attention.padding import Padding  # noqa: E402
from louver.attention.request import Backend, Request  # noqa: E402

__all__ = [
    "BACKENDS",
    "Backend",
    "Choice",
    "Padding",
    "Request",
    "SelfAttention",
    "attend",
    "choose",
    "from_additive",
    "from_zero_one",
]
