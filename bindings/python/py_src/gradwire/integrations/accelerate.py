"""Accelerate: compresses the gradients of a prepared model, and keeps memories in what ``save_state`` saves."""

from __future__ import annotations

import weakref
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from gradwire.torch import Hook
from gradwire.torch._plan import uncompiled

from ._files import load, save
from ._hook import hook_of

try:
    from accelerate import Accelerator
except ImportError as error:
    raise ImportError("gradwire.integrations.accelerate needs Accelerate: pip install accelerate") from error

# How many hooks each has.
_made: weakref.WeakKeyDictionary[Accelerator, int] = weakref.WeakKeyDictionary()


def compress(accelerator: Accelerator, model: Any, codec: str, **options: Any) -> Hook:
    """As :func:`gradwire.torch.compress`, of what ``accelerator.prepare`` returned for the model.

    ``accelerator.save_state`` and ``load_state`` then save and load what every rank keeps, in a file for each rank beside the
    random states. ``scaler`` is the accelerator's. The codec ``"auto"`` goes by the first optimizer that it has prepared.
    """
    model = uncompiled(model)
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"expected the DistributedDataParallel that accelerator.prepare(model) returns for several processes, got "
            f"{type(model).__name__} ({accelerator.distributed_type}): FSDP, DeepSpeed, Megatron and one process have no hook"
        )
    optimizer = next(iter(accelerator._optimizers), None)
    hook = hook_of(model, codec, options, scaler=accelerator.scaler, optimizer=optimizer)
    number = _made[accelerator] = _made.get(accelerator, -1) + 1
    name = f"gradwire_{number}" if number else "gradwire"
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: save(hook, folder, name))
    accelerator.register_load_state_pre_hook(lambda models, folder: load(hook, folder, name))
    return hook
