from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from louver.errors import OptionError
from louver.text.packing import pack


@given(lengths=st.lists(st.integers(1, 64), max_size=60), room=st.integers(64, 128))
def test_every_text_stands_once_and_whole(lengths: list[int], room: int) -> None:
    packs = pack(lengths, room)
    assert sorted(text for one in packs for text in one.texts) == list(range(len(lengths)))
    for one in packs:
        assert len(one.documents) == len(one.positions) == sum(lengths[text] for text in one.texts) <= room
        for number, text in enumerate(one.texts):
            np.testing.assert_array_equal(one.positions[one.documents == number], np.arange(lengths[text]))
    # best fit decreasing needs at most 11/9 of the fewest rows there can be, and 6/9 (Dósa 2007)
    assert len(packs) <= 11 / 9 * max(1, -(-sum(lengths) // room)) * 2


def test_short_texts_leave_little_room() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, 5000).tolist()
    packs = pack(lengths, 512)
    assert sum(lengths) / (512 * len(packs)) > 0.995


def test_too_long_a_text_is_refused() -> None:
    with pytest.raises(OptionError, match="a text has 70 tokens and a row holds 64; truncate it"):
        pack([3, 70], 64)
