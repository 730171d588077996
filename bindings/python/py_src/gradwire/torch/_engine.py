"""What users call of a hook."""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import _forks
from ._bucket import Bucket
from ._errors import ExchangeError
from ._keep import Loaded
from ._options import real, whole
from ._record import Log, stats_of
from ._stats import Stats
from ._worker import Worker

__all__ = ["Bucket", "Engine", "Loaded"]

# A fork waits for so long until the thread rests.
_FORK_SECONDS = 5.0
#: Those whose threads end before the interpreter does.
_alive: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for engine in list(_alive):
        engine.close()


class Engine:
    """The memories and counters of one model at one rank, for its user."""

    def __init__(self, worker: Worker) -> None:
        """Of the worker that makes the steps."""
        self._worker, self._watch = worker, worker.watch
        #: In a forked process: whether a step was under way, so that its memories may be of any moment.
        self._is_torn = False
        _alive.add(self)
        _forks.known.add(self)

    def stats(self) -> Stats:
        """Bytes and times so far."""
        worker = self._worker
        worker.settle()
        return stats_of(
            worker.view.totals(),
            worker.world,
            staging=worker.stage.seconds,
            exposed=worker.exposed,
            norm=self._watch.norm(),
            choice=worker.auto.text if worker.auto is not None else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that this rank needs to continue with the same bits: plain values, and copies of tensors by name.

        Every rank saves its own after a step, together with the state of the model and of the optimizer.
        """
        self._worker.settle()
        if self._is_torn:
            raise ExchangeError("state_dict() in a forked process: a step was under way, so call it before the fork")
        return self._worker.keep.state(self._worker.epoch)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues from what :meth:`state_dict` returned at this rank. An exception changes nothing.

        To continue with fewer or more ranks, pass the states of all old ranks, in rank order, at every new rank. Old rank i
        goes to new rank i modulo the new number, weighted so that the residuals add the same to the mean. Residuals of tensors
        that are not in the model, not trained or sent dense stay under their names, and a warning gives their norms.
        """
        self._take(self._read(state))

    def _read(self, given: object) -> Loaded:
        """All that there is to check of a state."""
        return self._worker.keep.read(given)

    def _take(self, loaded: Loaded) -> None:
        """Goes on from there. A step that backward has left in the middle comes to nothing."""
        loaded.warn()
        self._worker.wait()
        self._watch.spikes.forget()
        self._worker.keep.take(loaded)
        self._worker.epoch = loaded.state["epoch"]
        self._worker.first_step = None

    def rescale(self, ratio: float) -> None:
        """Multiplies the residuals: by the old learning rate over the new one when it changes. All ranks call it alike.

        With ``optimizer=`` the hook does it by itself.
        """
        ratio = real("ratio", ratio, math.isfinite, "a finite number")
        self._worker.wait()
        self._watch.spikes.forget()
        self._worker.core.rescale(ratio)

    def discard(self) -> None:
        """Forgets the last step: what it left in the memories goes. For a gradient that the loop throws away.

        Without it, error feedback would send the rest of that gradient with later ones. Call it after backward and in place of
        ``optimizer.step()``, at all ranks or at none: ranks that differ raise :class:`OutOfStepError` in the next step. A step
        whose gradients were not finite has left nothing. Codecs with momentum or factors need ``discardable=True``.
        """
        worker = self._worker
        worker.settle()
        _, _, _, is_under_way, last = worker.view.progress()
        if is_under_way or last == "none":
            raise ExchangeError("discard: there is no step to discard; call it once, between a backward and the next")
        stays = [str(group.codec) for group in worker.active.groups if not worker.core.is_discardable(group.lane)]
        if stays:
            raise ExchangeError(f"discard: {stays[0]} keeps more than error feedback: pass discardable=True to compress")
        worker.core.discard()
        self._watch.spikes.discard()
        worker.discarded += 1

    def set_epoch(self, epoch: int) -> None:
        """Tells codecs with ``warmup=`` the epoch, counted from 0. Call it at the start of each epoch, at all ranks.

        Until it is called there is no warm-up.
        """
        epoch = whole("epoch", epoch)
        self._worker.wait()
        self._worker.epoch = epoch

    def residual(self, name: str) -> torch.Tensor:
        """A copy of the residual of one tensor."""
        self._worker.settle()
        return self._worker.keep.residual(name)

    @property
    def loss(self) -> float | None:
        """The loss that the next line of :meth:`log` will hold."""
        return self._watch.loss

    @loss.setter
    def loss(self, loss: float | None) -> None:
        self._watch.loss = loss

    @property
    def advice(self) -> str | None:
        """After ten compressed steps: why compression does not pay, if it does not. Rank 0 says it in a warning."""
        return self._watch.advice

    @property
    def gradient_norm(self) -> float | None:
        """With ``clip_norm=``: the norm over all ranks of the last gradient, before it was clipped, and without the scale."""
        clip = self._worker.clip
        return clip.norm if clip is not None else None

    @property
    def step(self) -> int:
        """The number of the next step."""
        self._worker.settle()
        step: int = self._worker.view.progress()[0]
        return step

    def log(self, path: str | Path) -> None:
        """Appends a line for each step to a file, at rank 0, with the keys of the trainer's ``metrics.jsonl``.

        Bytes are sums over all ranks; times and the norm are those of rank 0. ``hook.loss`` is the loss of the line.
        """
        if self._worker.rank == 0:
            self._watch.log = Log(Path(path), self._worker.view.totals(), self._worker.world)

    def close(self) -> None:
        """Ends the thread and the connections. Called when the interpreter exits, which it delays by two seconds at most."""
        if not self._worker.is_forked():
            self._worker.close()

    def before_fork(self) -> None:
        """Lets the thread end what it does behind a step; does not wait for a step under way."""
        self._worker.core.before_fork(_FORK_SECONDS)

    def after_fork(self, is_child: bool) -> None:
        """In the child, nothing waits for a thread that is not there, nor for locks that it held."""
        is_torn = self._worker.core.after_fork()
        if is_child:
            self._is_torn = is_torn
            text = "this process was forked from the one that trains, and only that one takes steps"
            self._worker.failure = ExchangeError(text)

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__}: it has threads, and is neither copied nor pickled: save its state_dict()")
