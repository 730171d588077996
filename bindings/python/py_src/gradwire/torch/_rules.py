"""Rules by tensor name that many models want."""

from __future__ import annotations

import glob

import torch
from torch.nn.parallel import DistributedDataParallel

from ._plan import plain, uncompiled


def dense_embeddings_and_norms(model: torch.nn.Module) -> dict[str, str]:
    """For ``rules=``: embeddings and norms are sent as they are, and all else by the codec.

    Norms are a thousandth of a model's bytes. Of an embedding few rows have a gradient, and a row that a codec keeps back waits
    until its word comes again. An output layer that shares the embedding's tensor is sent with it. Add rules of your own behind
    or before: ``rules={"head.*": "none", **dense_embeddings_and_norms(model)}``.

    :param model: with or without DDP. Embeddings and norms are known by the names of their classes, which hold ``Embedding`` or
        ``Norm``. A parameter that is trained no more, as by an optimizer that leaves it out, is not to be among them.
    :return: a rule for each tensor that needs a gradient.
    """
    model = uncompiled(model)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    dense = {
        id(parameter)
        for module in inner.modules()
        if any(kind in type(module).__name__ for kind in ("Embedding", "Norm"))
        for parameter in module.parameters(recurse=False)
    }
    return {
        glob.escape(plain(name)): "none"
        for name, parameter in inner.named_parameters()
        if id(parameter) in dense and parameter.requires_grad and parameter.numel()
    }
