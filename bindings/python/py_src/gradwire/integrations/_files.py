"""The states of hooks in a folder of a checkpoint: a file for each rank, as the frameworks keep random states."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.torch import Hook


def save(hook: Hook, folder: str | Path, name: str) -> None:
    """Writes the state of this rank. A file is there as a whole or not at all."""
    path = _path(folder, name, dist.get_rank())
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(hook.state_dict(), partial)
    partial.replace(path)


def load(hook: Hook, folder: str | Path, name: str) -> None:
    """Continues from what :func:`save` wrote, also where there were fewer or more ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    first = _path(folder, name, rank)
    if not first.exists():
        first = _path(folder, name, 0)
    if not first.exists():
        warnings.warn(f"{folder} holds nothing that a hook kept: gradwire starts with empty memories", stacklevel=3)
        return
    state = _read(first)
    if state["world"] == world:
        state = _read(_path(folder, name, rank))
    else:
        state = [_read(_path(folder, name, old)) for old in range(state["world"])]
    hook.load_state_dict(state)


def _path(folder: str | Path, name: str, rank: int) -> Path:
    return Path(folder) / f"{name}_{rank}.pt"


def _read(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"{path}: what this rank kept is not there; it needs the files of all ranks of the checkpoint")
    return torch.load(path, map_location="cpu", weights_only=True)
