"""What the callbacks of frameworks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch
from gradwire.torch import Hook
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

    Only ``"auto"`` gets the optimizer: it chooses codecs by its kind. With others, residuals would follow its rate unasked.
    """
    own: dict[str, Any] = {"scaler": scaler}
    if codec == AUTO:
        own["optimizer"] = optimizer
    return gradwire.torch.compress(model, codec, **{**own, **options})
