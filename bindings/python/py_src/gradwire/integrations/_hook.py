"""What the callbacks of frameworks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch
from gradwire.torch import Hook
from gradwire.torch._kinds import warn_of_misfit
from gradwire.torch._options import AUTO


def hook_of(
    model: DistributedDataParallel,
    codec: str,
    options: Mapping[str, Any],
    *,
    scaler: Any,
    optimizer: torch.optim.Optimizer | None,
) -> Hook:
    """The hook of a model, with the framework's scaler and optimizer unless the caller gave others.

    Only ``"auto"`` gets the optimizer: it chooses codecs by its kind. With others, residuals would follow its rate unasked; so
    rank 0 warns here if the codec does not go with it.
    """
    own: dict[str, Any] = {"scaler": scaler}
    if codec == AUTO:
        own["optimizer"] = optimizer
    hook = gradwire.torch.compress(model, codec, **{**own, **options})
    if options.get("optimizer") is None and hook._worker.rank == 0:
        warn_of_misfit(codec, optimizer)
    return hook
