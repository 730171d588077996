"""Parts of a model that are exchanged in turn: which tensors each has, and when its turn is."""

from __future__ import annotations

from collections.abc import Mapping


def cut(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """So many neighbouring runs of tensors, none of them empty, of nearly equal size."""
    if count > len(sizes):
        raise ValueError(f"fragments={count}: the optimizer trains {len(sizes)} tensors, and each fragment needs one")
    fragments: list[list[str]] = [[]]
    size, left = 0, sum(sizes.values())
    for at, (name, own) in enumerate(sizes.items()):
        others = count - len(fragments)
        # Half of it may be too much, so that the fragment is nearest to its share.
        is_full = fragments[-1] and (2 * size + own) * (others + 1) > 2 * (size + left)
        if others and (is_full or len(sizes) - at == others):
            fragments.append([])
            size = 0
        fragments[-1].append(name)
        size, left = size + own, left - own
    return fragments


def due(taken: int, every: int, count: int) -> int | None:
    """The fragment whose turn is after so many steps: each once in ``every`` steps, as evenly as whole steps allow."""
    turns = [every * (fragment + 1) // count for fragment in range(count)]
    at = (taken - 1) % every + 1
    return turns.index(at) if at in turns else None
