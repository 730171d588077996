"""Lightning: a callback that compresses gradients, and keeps the memories of all ranks in its checkpoints."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch import Hook

from ._hook import hook_of

try:
    import lightning.pytorch as pl
except ImportError:
    try:
        import pytorch_lightning as pl
    except ImportError as error:
        raise ImportError("gradwire.integrations.lightning needs Lightning: pip install lightning") from error


class Compress(pl.Callback):
    """Compresses the gradients of a fit: ``Trainer(strategy="ddp", callbacks=[Compress("qsgd:bits=4")])``.

    Lightning's own ``ddp_comm_hook=`` does nothing unless the device is CUDA. A checkpoint holds what all ranks keep.
    """

    def __init__(self, codec: str, **options: Any) -> None:
        """The options are those of :func:`gradwire.torch.compress`; ``scaler`` is that of the precision plugin.

        The codec ``"auto"`` goes by the first optimizer of the trainer.
        """
        self._codec, self._options = codec, options
        self._states: list[dict[str, Any]] = []
        self.hook: Hook | None = None
        """What :func:`gradwire.torch.compress` returned, from the beginning of the training on."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes the hook of the wrapped model."""
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(
                f"Compress: {type(trainer.strategy).__name__} makes a {type(model).__name__}, expected "
                'DistributedDataParallel: use Trainer(strategy="ddp") with two devices or more'
            )
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        optimizer = next(iter(trainer.optimizers), None)
        self.hook = hook_of(model, self._codec, self._options, scaler=scaler, optimizer=optimizer)
        if self._states:
            self.hook.load_state_dict(self._states)
            self._states = []

    def state_dict(self) -> dict[str, Any]:
        """What all ranks keep, at rank 0, which writes the checkpoint. All ranks call it."""
        if self.hook is None:
            return {"states": self._states} if self._states else {}
        states: list[Any] = [None] * dist.get_world_size()
        is_first = dist.get_rank() == 0
        dist.gather_object(self.hook.state_dict(), states if is_first else None)
        return {"states": states} if is_first else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until the training starts."""
        self._states = state_dict["states"]

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Ends the hook."""
        if self.hook is not None:
            self.hook.close()
