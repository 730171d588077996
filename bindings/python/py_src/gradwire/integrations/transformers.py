"""The Trainer of Transformers: a callback that compresses gradients, and keeps memories in its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from gradwire.torch import Hook
from gradwire.torch._plan import uncompiled

from ._files import load, save
from ._hook import hook_of

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise ImportError("gradwire.integrations.transformers needs Transformers: pip install transformers") from error

_NAME = "gradwire"


class Compress(TrainerCallback):
    """Compresses the gradients of a trainer: ``trainer.add_callback(Compress(trainer, "qsgd:bits=4"))``.

    What every rank keeps is in its checkpoints, in a file for each rank beside the random states.
    """

    def __init__(self, trainer: Trainer, codec: str, *, resume_from: str | Path | None = None, **options: Any) -> None:
        """The options are those of :func:`gradwire.torch.compress`; ``scaler`` is the trainer's.

        The codec ``"auto"`` goes by the trainer's optimizer.

        :param resume_from: the folder of the checkpoint to resume from, if it is not
            ``checkpoint-STEP`` in the trainer's ``output_dir``.
        """
        self._trainer, self._codec, self._resume_from, self._options = trainer, codec, resume_from, options
        self.hook: Hook | None = None
        """What :func:`gradwire.torch.compress` returned, from the beginning of the training on."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Makes the hook of the wrapped model; the model that callbacks are given is not that."""
        model = uncompiled(self._trainer.model_wrapped)
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(
                f"Compress: the trainer wraps the model as {type(model).__name__}, expected DistributedDataParallel: start it "
                "with torchrun and two processes or more, without FSDP and DeepSpeed"
            )
        scaler, optimizer = self._trainer.accelerator.scaler, self._trainer.optimizer
        self.hook = hook_of(model, self._codec, self._options, scaler=scaler, optimizer=optimizer)
        if state.global_step:
            own = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            load(self.hook, self._resume_from or own, _NAME)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Saves what this rank keeps."""
        if self.hook is not None and not args.save_only_model:
            save(self.hook, Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", _NAME)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ends the hook."""
        if self.hook is not None:
            self.hook.close()
