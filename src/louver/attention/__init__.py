"""How attention is computed: `attend`, the `SelfAttention` module, and the backends behind them."""

from louver.errors import need_extra

need_extra("train", "torch")

from louver.attention.attend import attend
from louver.attention.choose import BACKENDS, Choice, choose
from louver.attention.documents import Documents
from louver.attention.lowrank import Linformer
from louver.attention.masks import from_additive, from_zero_one
from louver.attention.module import SelfAttention
from louver.attention.padding import Padding
from louver.attention.request import Backend, Request

__all__ = [
    "BACKENDS",
    "Backend",
    "Choice",
    "Documents",
    "Linformer",
    "Padding",
    "Request",
    "SelfAttention",
    "attend",
    "choose",
    "from_additive",
    "from_zero_one",
]
