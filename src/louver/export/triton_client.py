"""Ask a Triton server that serves this repository: python client.py "a text" --url localhost:8000.

Needs tokenizers, numpy and tritonclient[http]. Texts are cut at the model's length.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tokenizers import Tokenizer

HERE = Path(__file__).parent


class Client:
    """A model repository's models behind one method."""

    def __init__(self, url: str, home: Path = HERE) -> None:
        self.about = json.loads((home / "client.json").read_text("utf8"))
        self.tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.about["max_length"])
        self.server = triton.InferenceServerClient(url)

    def outputs(self, text: str) -> np.ndarray:
        """Return the model's raw outputs for a text: (outputs,), or (tokens, outputs)."""
        ids = self.tokenizer.encode(self.about["prompt"] + text).ids
        graph = next(one for one in self.about["graphs"] if len(ids) <= one["limit"])
        width = -(-len(ids) // graph["multiple"]) * graph["multiple"]
        row = np.full((1, width), self.about["pad_id"], self.about["ids"])
        row[0, : len(ids)] = ids
        mask = (np.arange(width)[None] < len(ids)).astype(self.about["ids"])
        given = []
        for name, array in (("input_ids", row), ("attention_mask", mask)):
            given.append(triton.InferInput(name, array.shape, self.about["ids"].upper()))
            given[-1].set_data_from_numpy(array)
        found: np.ndarray = self.server.infer(graph["model"], given).as_numpy("output")[0]
        return found[: len(ids)] if found.ndim == 2 else found

    def answer(self, text: str) -> object:
        """Return labels with probabilities, a number, or the outputs as they are (embeddings; one row a token)."""
        found = self.outputs(text)
        if self.about["kind"] == "regression":
            return float(found[0])
        if self.about["kind"] == "multi":
            return dict(zip(self.about["labels"], (1 / (1 + np.exp(-found))).round(6).tolist(), strict=True))
        if self.about["kind"] == "single":
            chances = np.exp(found - found.max())
            return dict(zip(self.about["labels"], (chances / chances.sum()).round(6).tolist(), strict=True))
        return found.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--url", default="localhost:8000")
    given = parser.parse_args()
    client = Client(given.url)
    for text in given.text:
        print(json.dumps(client.answer(text)))


if __name__ == "__main__":
    main()
