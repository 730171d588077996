"""Whether an optimizer trains worse on what a codec leaves of gradients."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradwire import Codec

from ._kinds import wrapped
from ._worker import Worker

#: Codecs that leave little of gradients, beside those that have a density.
_LEAVE_LITTLE = ("threshold", "powersgd", "efsign")


class Misfit:
    """Says once, at rank 0, that an optimizer trains worse with a codec that some tensors of a worker have."""

    def __init__(self, worker: Worker) -> None:
        """`"auto"` chooses what goes with its optimizer."""
        codecs = [] if worker.auto is not None or worker.rank > 0 else [group.codec for group in worker.plan.groups]
        self._codec = next((codec for codec in codecs if _leaves_little(codec)), None)
        self._parameters = [weakref.ref(tensor.parameter) for tensor in worker.tensors]
        self._handle: Any = None

    def warn(self, optimizer: object, *, callers: int = 1) -> None:
        """Warns who called the function that calls this, or is more callers away."""
        names = (kind.__name__ for one in wrapped(optimizer) for kind in type(one).__mro__)
        name = next((name for name in names if "Adam" in name or name == "Muon"), None)
        if name is not None and self._codec is not None:
            self._parameters = []
            warnings.warn(
                f"gradwire: {name} trained worse with sparse and low-rank gradients and with signs, as {self._codec.name} "
                "makes them; qsgd:bits=4 goes with it, and for far fewer bytes gradwire.torch.LocalSteps "
                "(docs/optimizers.md)",
                stacklevel=2 + callers,
            )

    def await_optimizer(self) -> None:
        """Nobody has named the optimizer: looks at those that move parameters, when each makes its first step."""
        if self._codec is not None:
            self._handle = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
        if not self._parameters:
            # All are known. Torch goes through its hooks now, so this one cannot be removed here.
            return
        moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        others = [one for one in self._parameters if id(one()) not in moved]
        if len(others) < len(self._parameters):
            self._parameters = others
            # Torch wraps the step, which the user called.
            self.warn(optimizer, callers=2)

    def close(self) -> None:
        """Looks no more."""
        if self._handle is not None:
            self._handle.remove()


def _leaves_little(codec: Codec) -> bool:
    return codec.density is not None or codec.name in _LEAVE_LITTLE
