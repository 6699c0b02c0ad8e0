"""`replay`: does a bundle still answer as on the day it was written?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from louver.bundle import Bundle
from louver.decode import flat
from louver.errors import BundleError
from louver.runtime.predictor import Predictor
from louver.versions import versions


def replay(path: str | Path) -> dict[str, Any]:
    """Check a bundle's bytes and answer its golden texts again.

    Args:
        path: directory of the bundle.

    Returns:
        The largest difference, |Δ| / (1 + max |output|), its tolerance, and the versions then and now.

    Raises:
        BundleError: if a byte changed, there are no golden texts, or an answer moved beyond the tolerance.
    """
    bundle = Bundle.open(path)
    golden = bundle.card.golden
    if golden is None:
        raise BundleError(f"{path} carries no golden texts; write it again with this louver")
    with Predictor(bundle, truncation="head") as predictor:
        found = predictor.logits(golden.texts)
    worst = 0.0
    for output, expected in zip(found, golden.outputs, strict=True):
        wanted = np.asarray(expected)
        gap = float(np.abs(flat(output)[: len(wanted)] - wanted).max() / (1 + np.abs(wanted).max()))
        worst = float(np.maximum(worst, gap))  # keeps a NaN
    then = bundle.card.history[-1].versions if bundle.card.history else {}
    result = {
        "bundle": str(path),
        "digest": bundle.digest,
        "max_difference": worst,
        "tolerance": golden.tolerance,
        "versions_then": then,
        "versions_now": versions(),
    }
    if not worst <= golden.tolerance:
        raise BundleError(
            f"{path} answers its golden texts {worst:.1e} away, more than {golden.tolerance:.0e}; "
            f"it was written under {then}, this is {versions()}"
        )
    return result
