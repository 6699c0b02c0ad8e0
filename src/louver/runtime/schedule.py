"""Length-exact scheduling: which texts run together, so that hardly any padding is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_PADDING = 0.05
"""Share of padded tokens in a call at most, on a branch that takes every length."""


@dataclass(frozen=True)
class Branch:
    """One graph of a model.

    Attributes:
        limit: tokens of the longest text that it reads.
        multiple: tokens must be padded to a multiple of this.
    """

    limit: float
    multiple: int = 1


@dataclass(frozen=True)
class Group:
    """Texts that run in one call.

    Attributes:
        branch: index of the branch.
        members: indices of the texts.
        width: tokens a text, padding included.
    """

    branch: int
    members: tuple[int, ...]
    width: int


def schedule(
    lengths: Sequence[int], branches: Sequence[Branch], *, max_tokens: int = 4096, alone: bool = False
) -> list[Group]:
    """Group texts by length.

    Args:
        lengths: tokens of each text, specials included.
        branches: graphs by rising limit; a text takes the first that reads it.
        max_tokens: tokens a call at most; a longer text runs alone.
        alone: give every text a call of its own, for bundles whose answers depend on the batch.

    Returns:
        Groups, longest texts first, so that the last calls to finish are short ones.
    """
    by_branch: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        branch = next(i for i, b in enumerate(branches) if length <= b.limit)
        by_branch.setdefault(branch, []).append(index)
    groups: list[Group] = []
    for branch, members in by_branch.items():
        multiple = branches[branch].multiple
        members.sort(key=lambda i: (-lengths[i], i))
        start = 0
        while start < len(members):
            width = -(-lengths[members[start]] // multiple) * multiple
            stop, least = start, 0
            while stop < len(members):
                count = stop - start + 1
                least += -(-lengths[members[stop]] // multiple) * multiple  # what the block forces is no choice
                padding = 1 - least / (count * width)
                if stop > start and (alone or count * width > max_tokens or padding > MAX_PADDING):
                    break
                stop += 1
            groups.append(Group(branch, tuple(members[start:stop]), width))
            start = stop
    groups.sort(key=lambda g: -g.width * len(g.members))
    return groups


def padding_share(groups: Sequence[Group], lengths: Sequence[int]) -> float:
    """Return the share of computed tokens that are padding."""
    computed = sum(g.width * len(g.members) for g in groups)
    return 1 - sum(lengths[m] for g in groups for m in g.members) / computed if computed else 0.0
