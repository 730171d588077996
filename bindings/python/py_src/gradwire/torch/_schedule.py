"""What is sent how, in which step, if the user says it: the lanes of the engine for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gradwire import Codec, Layout

from ._options import Options
from ._plan import Named, Plan, Unit

#: Codec, layout, units, whether a step can be discarded, and how payloads travel.
Lane: TypeAlias = tuple[Codec, Layout, list[Unit], bool, str]


def lanes_of(plan: Plan, discardable: bool, wire: str) -> list[Lane]:
    """A lane for each group. Frames travel as they are."""
    return [
        (group.codec, group.layout, group.units, discardable, wire if group.codec.is_linear else "f32") for group in plan.groups
    ]


class Fixed:
    """One plan, and dense gradients before the first step that is compressed."""

    def __init__(self, tensors: Sequence[Named], options: Options) -> None:
        """As the options say."""
        self.plan = Plan(tensors, options.codec, dict(options.rules or {}), options.dense_below)
        self._dense = self.plan
        if options.start_step:
            self._dense = Plan(tensors, "none", {}, 0, len(self.plan.groups))
        self._options = options
        if options.wire != "f32" and not any(
            group.codec.is_linear for plan in (self.plan, self._dense) for group in plan.groups
        ):
            raise ValueError(f"wire={options.wire!r}: {options.codec} makes frames, which travel as they are; use wire='f32'")

    def lanes(self) -> list[Lane]:
        """As the engine makes them."""
        plans = [self.plan] if self._dense is self.plan else [self.plan, self._dense]
        return [lane for plan in plans for lane in lanes_of(plan, self._options.discardable, self._options.wire)]

    def now(self, step: int, last: str) -> Plan:
        """What a step sends that begins, after one that ended so."""
        return self._dense if step < self._options.start_step else self.plan
