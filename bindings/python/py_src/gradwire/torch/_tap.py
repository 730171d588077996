"""Gradients as backward makes them, before DDP copies them to its buckets.

With ``gradient_as_bucket_view=True`` the ``grad`` of a parameter is a view of a bucket. Backward makes each gradient in memory
of its own, and DDP copies it to the bucket, unless it is there already. A codec needs no such copy: it reads the gradient where
backward made it. So a hook of the parameter takes the gradient, and gives backward a view of the bucket in its place. What the
view holds does not matter until the mean of all ranks is written there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from ._plan import Named, is_plain

#: A smaller gradient takes less time to copy than to take.
LEAST_ELEMENTS = 1 << 16


class _Backward:
    """What was taken in one backward. Backward owns it, so that it goes with backward, whether that succeeds or fails."""

    def __init__(self) -> None:
        """Of a backward that has just begun to make gradients."""
        #: By position in the model.
        self.taken: dict[int, tuple[torch.nn.Parameter, torch.Tensor]] = {}

    def give_back(self, position: int) -> None:
        """Puts a gradient where whoever does not know of this module looks for it."""
        parameter, gradient = self.taken.pop(position)
        with torch.no_grad():
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.copy_(gradient)

    def __call__(self) -> None:
        """At the end of backward: gives back what no bucket has claimed, as in `no_sync()`."""
        for position in list(self.taken):
            self.give_back(position)


class Tap:
    """Takes gradients of a DDP model, if it can do so without being noticed."""

    def __init__(self, ddp: DistributedDataParallel, tensors: Sequence[Named]) -> None:
        """Of these tensors, where they are large."""
        self._ddp = weakref.ref(ddp)
        # By the number that autograd gives them; one backward may run inside of another.
        self._backwards: weakref.WeakValueDictionary[int, _Backward] = weakref.WeakValueDictionary()
        # Where DDP looks for the gradients, by position: in the buckets of the step before.
        self._views: dict[int, torch.Tensor] = {}
        can = bool(getattr(ddp, "gradient_as_bucket_view", False)) and getattr(ddp, "mixed_precision", None) is None
        large = [one for one in tensors if one.parameter.numel() >= LEAST_ELEMENTS and one.parameter.device.type == "cpu"]
        self._handles = [one.parameter.register_hook(self._hook_of(one)) for one in large if can]

    def close(self) -> None:
        """Takes no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._views.clear()

    def expect(self, positions: Sequence[int], gradients: Sequence[torch.Tensor | None]) -> None:
        """Tells where the gradients of a bucket are."""
        if self._handles:
            self._views.update((at, view) for at, view in zip(positions, gradients, strict=True) if view is not None)

    def forget(self) -> None:
        """DDP has cut its buckets anew."""
        self._views.clear()

    def claim(self, positions: Sequence[int]) -> dict[int, torch.Tensor]:
        """Those of the gradients of a bucket that were taken, by their places in the bucket."""
        claimed: dict[int, torch.Tensor] = {}
        if not self._handles:
            return claimed
        for backward in self._backwards.values():
            for place, position in enumerate(positions) if backward.taken else ():
                if position in backward.taken:
                    claimed[place] = backward.taken.pop(position)[1]
        return claimed

    def _hook_of(self, tensor: Named) -> Callable[[torch.Tensor], torch.Tensor | None]:
        position, parameter = tensor.position, tensor.parameter

        def take(gradient: torch.Tensor) -> torch.Tensor | None:
            for backward in self._backwards.values():
                if position in backward.taken:
                    # A second gradient in the same backward, which will be added to the first.
                    backward.give_back(position)
            view = self._views.get(position)
            if view is None or not self._goes_unnoticed(parameter, gradient):
                return None
            self._backward_now().taken[position] = (parameter, gradient)
            # Autograd makes it the `grad` if nobody else holds it.
            return view.detach()

        # As it does not matter to what a model is, it is left out when the model is saved.
        take.__torch_unserializable__ = True  # type: ignore[attr-defined]
        return take

    def _goes_unnoticed(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> bool:
        """Whether the gradient is the whole of what DDP will reduce, and nobody else looks at it before."""
        ddp = self._ddp()
        return (
            parameter.grad is None
            and ddp is not None
            and bool(ddp.require_backward_grad_sync)
            and is_plain(gradient)
            and not torch.is_grad_enabled()
            and len(parameter._backward_hooks or ()) == 1
            and not parameter._post_accumulate_grad_hooks
            and _becomes_grad(parameter)
        )

    def _backward_now(self) -> _Backward:
        number = torch._C._current_graph_task_id()
        backward = self._backwards.get(number)
        if backward is None:
            backward = self._backwards[number] = _Backward()
            torch.autograd.Variable._execution_engine.queue_callback(backward)
        return backward


def _becomes_grad(parameter: torch.nn.Parameter) -> bool:
    """Whether the backward under way adds to the `grad` of the parameter; :func:`torch.autograd.grad` returns the gradient."""
    node = torch.autograd.graph.get_gradient_edge(parameter).node
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        # This is how it says that the gradient of a leaf was asked for.
        return False
