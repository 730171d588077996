"""How LocalSteps exchange where sites come, go and are late."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ._agreement import Agreement
from ._errors import PeerFailedError, PeerLostError
from ._meet import Place
from ._sites import Attendance, Sites

if TYPE_CHECKING:
    from ._local import LocalSteps


# How often in a row sites may fail to come together, before that is more than sites that are lost.
_MOST_FAILURES = 10


@dataclass(frozen=True)
class _Brings:
    """What a site brings to those that it meets: its state, and where its steps had led since its last exchange."""

    state: Mapping[str, Any] | None
    ends: Mapping[str, torch.Tensor] | None


class AtSites:
    """One site: which exchanges it takes part in, and from where it goes on when it meets others."""

    def __init__(self, steps: LocalSteps, sites: Sites) -> None:
        """Alone, until it comes in."""
        self._steps, self._attendance = steps, Attendance(sites, self._gone)
        self._parameters = sites._parameters
        #: While this site is among no others.
        self._brings: _Brings | None = _Brings(None, None)
        self._failures = 0

    @property
    def place(self) -> Place:
        """Where this site meets those it is connected with."""
        return self._attendance.place

    def _gone(self) -> list[int]:
        return self._steps.exchange._worker.gone()

    def come_in(self, state: Mapping[str, Any] | None) -> None:
        """Joins the others."""
        self._attendance.agree({**self._steps.exchange._worker.settings, "parameters": self._parameters})
        self._brings = _Brings(state, None)
        self.meet()

    def agreed(self, *, is_last: bool) -> Agreement | None:
        """Who exchanges now, if this site does. A late one does not, and waits for the others only at its last exchange."""
        if self._brings is not None:
            raise RuntimeError("step: call rejoin() before the first one, so that this site meets the others")
        self._steps._is_late = self._steps._is_late or self._attendance.come()
        return self.meet(waits=is_last or not self._steps._is_late)

    def meet(self, *, waits: bool = True) -> Agreement | None:
        """Who exchanges next, if this site does; nothing if it has joined others instead.

        Without ``waits``, nothing also as long as the others are not ready; but a site that is connected to none has to wait.
        """
        while (now := self._attendance.meet(waits=waits or self._brings is not None)) is not None:
            if self._attendance.me not in now.members:
                if self._connect(now, now.everybody):
                    self._steps._is_late = False
                    break
            elif not now.is_anew or self._connect(now, now.members):
                return now
        return None

    def others_wait(self) -> bool:
        """Whether others are ready for the next exchange."""
        return self._attendance.others_wait()

    def finish(self, now: Agreement) -> bool:
        """Whether the exchange came to its end, and this site is where it led."""
        try:
            self._steps._take_pending()
        except (PeerFailedError, PeerLostError) as error:
            self._steps._drop_means()
            self._attendance.failed(now, error.ranks if isinstance(error, PeerLostError) else ())
            return False
        self._attendance.ended(now)
        return True

    def admit(self, now: Agreement, *, is_due: bool) -> bool:
        """Lets those join who were agreed on. Returns whether that failed half done, so that this site had to join anew, too.

        With ``is_due`` the next exchange follows at once.
        """
        if not now.joins or self._connect(now, now.everybody, is_due=is_due) or self._brings is None:
            return False
        self.meet()
        return True

    def _connect(self, now: Agreement, those: Sequence[str], *, is_due: bool = False) -> bool:
        """Connects those sites, and lets them go on from where the first of them is that knows most.

        If one of them does not come, all stays as it was. If it fails later, this site is among no others until it meets some.
        With ``is_due`` members exchange at once, and those who come in take a step before that.
        """
        steps, taken, brings = self._steps, self._steps._taken, self._brings
        if brings is None:
            state = {**steps.state_dict(), "taken": taken - is_due}
            brings = _Brings(state, {name: parameter.detach().clone() for name, (_, parameter) in steps._kept.items()})
        if not self._attendance.all_come(now, those):
            return False
        self._brings, is_sent = brings, self._attendance.missed_the_end()
        try:
            steps._outer.close()
            self._attendance.connect(now, those)
            steps._make_outer()
            steps._go_on(brings.state)
        except RuntimeError as error:
            # Of a peer that is lost, gloo says no more than this.
            self._failures += 1
            if self._failures > _MOST_FAILURES:
                raise
            warnings.warn(f"gradwire: {len(those)} sites did not come together, and meet again: {error}", stacklevel=2)
            self._attendance.lost()
            return False
        self._brings, self._failures = None, 0
        if self._attendance.me in now.members:
            steps._taken = taken
        if brings.state is not None and brings.ends is not None and not is_sent:
            self._move_as(brings.state["kept"], brings.ends)
        return True

    def _move_as(self, before: Mapping[str, torch.Tensor], ends: Mapping[str, torch.Tensor]) -> None:
        """Moves the parameters as far as the steps of this site had led."""
        with torch.no_grad():
            for name, (start, parameter) in self._steps._kept.items():
                is_same = torch.equal(start, before[name])
                parameter.copy_(ends[name] if is_same else start + (ends[name] - before[name].to(parameter.dtype)))

    def as_sent(self, kept: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters from which all continue, if some of them lack these."""
        return {name: one.bfloat16() if self._parameters == "bf16" else one for name, one in kept.items()}

    def leave(self) -> None:
        """Tells the others that the run is over here."""
        self._attendance.leave(is_over=True)
