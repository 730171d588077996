"""A look at the first gradient of each tensor, before DDP sees it.

DDP takes a tensor for dense unless its layer says otherwise, as `nn.Embedding(sparse=True)` does. If `F.embedding` of a plain
parameter, with `sparse=True`, makes a sparse gradient, DDP fails before it calls any communication hook, and does not name the
tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.hooks import RemovableHandle

from ._errors import ExchangeError
from ._plan import Named


class Look:
    """A hook on every tensor, which goes at the end of the backward that made the tensor's first gradient."""

    def __init__(self, tensors: Sequence[Named]) -> None:
        """At these tensors."""
        self._handles = {one.position: (one.parameter, self._watched(one)) for one in tensors}
        self._seen: list[int] = []
        #: The number that autograd gives the backward at whose end the hooks go.
        self._backward = -1

    def close(self) -> None:
        """Looks no more."""
        for position in list(self._handles):
            self._forget(position)

    def _watched(self, tensor: Named) -> RemovableHandle:
        position, name = tensor.position, tensor.name

        def look(gradient: torch.Tensor | None) -> None:
            if gradient is None:
                # It took no part in this backward.
                return
            if gradient.layout != torch.strided:
                raise ExchangeError(
                    f"{name}: its gradient is sparse ({gradient.layout}), and sparse gradients are not supported; "
                    "leave out sparse=True where it is used"
                )
            self._seen.append(position)
            backward = torch._C._current_graph_task_id()
            if backward != self._backward:
                self._backward = backward
                torch.autograd.Variable._execution_engine.queue_callback(self._forget_seen)

        # As it does not matter to what a model is, it is left out when the model is saved.
        look.__torch_unserializable__ = True  # type: ignore[attr-defined]
        return tensor.parameter.register_hook(look)

    def _forget_seen(self) -> None:
        while self._seen:
            self._forget(self._seen.pop())

    def _forget(self, position: int) -> None:
        parameter, handle = self._handles.pop(position, (None, None))
        if parameter is None or handle is None:
            return
        handle.remove()
        # Autograd would call into Python for a list of hooks that is empty, at every backward.
        if not parameter._backward_hooks:
            parameter._backward_hooks = None
