"""What every driver shares: it loads, says "ready", and answers the same texts again for every line it is sent.

No package is needed here, for each peer has an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time


def serve(answer, work, outputs):
    """Answer all texts of a work file once for each line of standard input, and print the seconds that it took.

    Args:
        answer: function of a list of texts to an array (texts, width).
        work: path of JSON lines with ``text``.
        outputs: where the first round's array is saved.
    """
    import numpy as np

    with open(work, encoding="utf8") as stream:
        texts = [json.loads(line)["text"] for line in stream]
    said = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is no figure
    np.save(outputs, np.asarray(answer(texts), np.float32))
    print("ready", file=said, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        answer(texts)
        print(time.perf_counter() - began, file=said, flush=True)
