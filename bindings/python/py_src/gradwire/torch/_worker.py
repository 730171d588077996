"""How buckets go to the engine and come back. The work is done by a thread of Rust, beside backward."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import gradwire
from gradwire import Codec
from gradwire._core import _Bucket, _Engine, _Share

from ._auto import Auto
from ._bucket import Bucket, Lent
from ._clip import Clip
from ._errors import ExchangeError, PeerLostError, error_of
from ._keep import Keep
from ._meet import Place, mesh_of, place_of
from ._options import AUTO, Options, own_threads
from ._plan import Named
from ._schedule import Fixed
from ._stage import Stage, stage_of
from ._trials import SAID
from ._watch import Watch
from ._word import Word


class Worker:
    """The thread and the connections of one model at one rank.

    Buckets go from the calling thread to that of Rust, always in their order. It encodes one while the one before it travels.
    """

    def __init__(
        self,
        tensors: Sequence[Named],
        parent: dist.ProcessGroup | Place,
        options: Options,
        settings: Mapping[str, Any] | None = None,
        *,
        tells_used: bool = False,
    ) -> None:
        """All ranks of `parent` make theirs in the same order, and with the same further settings.

        With `tells_used` ranks tell each other which tensors they used.
        """
        self._tells_used = tells_used
        self.device = tensors[0].parameter.device
        self.stage = stage_of(self.device)
        self.tensors = list(tensors)
        self._numbers = {tensor.position: number for number, tensor in enumerate(self.tensors)}
        self.auto = Auto(self.tensors, options) if options.codec == AUTO else None
        self._schedule = self.auto or Fixed(self.tensors, options)
        self.plan = self._schedule.plan
        if options.scaler is None and any(tensor.parameter.dtype == torch.float16 for tensor in self.tensors):
            warnings.warn("float16 without scaler=: what is kept back is lost in silence where it underflows", stacklevel=3)
        self.options = options
        # `None` until `set_epoch` was called: codecs are then as they are after their warm-up.
        self.epoch: int | None = None
        self._is_closed = False
        self.exposed = 0.0
        self._pid = os.getpid()
        self.discarded = self._agreed = 0
        # Of this hook, or since it was given a state: ranks may then have loaded different parameters.
        self.first_step: int | None = None
        self.failure: BaseException | None = None
        self._raised: BaseException | None = None
        self.active = self.plan
        # Buckets of the step that come ahead of those of DDP.
        self._ahead = 0
        # The gradients of buckets that stay where they are.
        self.lent: dict[int, Lent] = {}
        # Where its ranks have met since.
        self._places = 0

        self.settings = _settings(self.tensors, options, self.auto, settings or {})
        self.place = parent if isinstance(parent, Place) else place_of(parent)
        mesh = mesh_of(
            self.place,
            self.settings,
            timeout=options.timeout,
            network=options.network,
            encrypt=options.encrypt,
        )
        self.rank, self.world = mesh.rank, mesh.world
        lanes: list[Any] = [*self._schedule.lanes()]
        self.clip: Clip | None = None
        if options.clip_norm is not None:
            self.clip = Clip(options.clip_norm, Word(len(lanes), self.rank, self.world, 1))
            lanes.append(self.clip.word.lane)
        if self.auto is not None:
            self.auto.word = Word(len(lanes), self.rank, self.world, SAID)
            lanes.append(self.auto.word.lane)
        names = [tensor.name for tensor in self.tensors]
        codec = AUTO if self.auto else str(Codec(options.codec))
        elements = sum(tensor.parameter.numel() for tensor in self.tensors)
        self.watch = Watch(self.plan, None if self.auto else codec, elements, self.world)
        threads = options.threads or own_threads(self.device)
        self.core = _Engine(mesh, lanes, names, self.watch.after_step, options.seed, options.timeout, threads)
        self.view = self.watch.view = self.core.view()
        self.keep = Keep(self.core, self.plan, codec, options.seed, self.rank, self.world, self.auto)

    # What the calling thread does.

    def hand_over(self, job: Bucket) -> None:
        """Gives the engine a bucket. Buckets come in their order; afterwards :meth:`finish` waits for their means."""
        clip = self.clip
        if clip is None:
            self._give(job, self._begin(job) if job.index == 0 else None)
            return
        if job.index == 0:
            # Of a step that ended before all gradients were there.
            for old in clip.release():
                old.done()
        clip.held.append(job)
        if job.is_last or job.failure is not None or self.error() is not None:
            self._give_clipped(clip)

    def _begin(self, job: Bucket) -> Any:
        """Begins a step, with a word ahead of its buckets if there is one. Returns what the first of them opens."""
        opening = self._open(job)
        said = self.auto.says() if self.auto is not None else None
        self._ahead = 0 if said is None else 1
        if said is None or self.auto is None:
            return opening
        self.core.give(self.auto.word.bucket(said, opening, self._agreed, job.failure))
        return None

    def _give_clipped(self, clip: Clip) -> None:
        """Gives the engine a whole step, with a bucket of its own before the others, which tells the norms."""
        began, jobs = time.perf_counter(), clip.release()
        failure = next((job.failure for job in jobs if job.failure is not None), None)
        self._raised = self._raised or failure
        opening, self._ahead = self._open(jobs[0]), 1
        norm = 0.0 if failure is not None else clip.own(jobs)
        if self.core.give(clip.word.bucket([norm], opening, self._agreed, failure)):
            try:
                self.wait(for_means=True)
            except BaseException as interrupt:
                # It is raised at the end of backward.
                self._raised = self._raised or interrupt
                self.core.break_off(f"step {self.view.progress()[0]}: the wait for it was interrupted")
        if self.error() is None:
            clip.clip(jobs, self.stage)
        for job in jobs:
            self._give(job, None)
        self.exposed += time.perf_counter() - began

    def _give(self, job: Bucket, opening: Any) -> None:
        shares: Sequence[_Share] = ()
        elsewhere: list[tuple[int, int, int]] = []
        parameters: list[torch.Tensor] = []
        fetch = None
        is_direct = type(self.stage) is Stage
        # To enter a range takes as long as a small message.
        is_profiled: bool = getattr(torch.autograd.profiler, "_is_profiler_enabled", True)
        if job.failure is None:
            try:
                if is_direct:
                    job.host = job.gradients
                    lent = self._locate(job)
                    shares, elsewhere, parameters = lent.shares, lent.elsewhere(job.taken), self._hashed(job)
                if not is_direct or lent.copied or job.on_encode or is_profiled:
                    fetch = lambda: self._fetch(job)  # noqa: E731
            except BaseException as failure:
                job.failure = failure
        needs_store = fetch is not None or job.on_decode is not None
        bucket = _Bucket(
            job.index + self._ahead,
            job.is_last,
            done=_done(job),
            keep=(job, parameters),
            agreed=self._agreed ^ zlib.crc32(repr(job.positions).encode()),
            opening=opening,
            shares=list(shares),
            elsewhere=elsewhere,
            elements=sum(self.tensors[self._numbers[position]].parameter.numel() for position in job.positions),
            used=self._used(job) if self._tells_used else b"",
            parameters=[_bytes_at(one) for one in parameters],
            failure=job.failure,
            fetch=fetch,
            store=(lambda is_bad: self._store(job, is_bad)) if needs_store else None,
            trace=torch.profiler.record_function if is_profiled else None,
        )
        # Whoever fails by itself raises that, whatever it hears of others.
        self._raised = self._raised or job.failure
        if not self.core.give(bucket):
            self.failure = self.error() or job.failure or ExchangeError("the thread that exchanges has ended")
            job.done()

    def _open(self, job: Bucket) -> Any:
        """What the step is that begins with this bucket."""
        step, _, _, is_under_way, last = self.view.progress()
        if is_under_way and self.error() is None:
            warnings.warn(f"step {step} ended before all gradients were there, and is repeated", stacklevel=3)
        self.active = self._schedule.now(step, last)
        density = job.density if job.failure is None else None
        codecs = [self._codec_now(group.codec, density) for group in self.active.groups]
        self.watch.begun[step] = self.active, codecs, self.epoch
        told = (job.scale, job.lr, [str(codec) for codec in codecs], self.discarded)
        self._agreed = zlib.crc32(repr(told).encode())
        return [group.lane for group in self.active.groups], codecs, job.scale, job.lr

    def _codec_now(self, codec: Codec, density: float | None) -> Codec:
        now = codec if self.epoch is None else codec.in_epoch(self.epoch)
        return now if density is None or now.density is None else now.with_density(density)

    def _locate(self, job: Bucket) -> Lent:
        """Where the bucket's gradients are in memory of the CPU."""
        lent = job.describe(self.active.parts(job.positions), self.lent.get(job.index))
        if job.stays and job.host is job.gradients:
            self.lent[job.index] = lent
        return lent

    def _hashed(self, job: Bucket) -> list[torch.Tensor]:
        """The parameters, if they are to be compared now; those of idle ranks are old."""
        every, step = self.options.check_every, self.view.progress()[0]
        if job.index or not every or job.is_idle:
            return []
        self.first_step = step if self.first_step is None else self.first_step
        if step % every and step != self.first_step:
            return []
        return [self.stage.to_host(tensor.parameter).detach().contiguous() for tensor in self.tensors]

    def _used(self, job: Bucket) -> bytes:
        """A bit for each tensor of the bucket that this rank used."""
        bits = bytearray(-(-len(self.tensors) // 8))
        for position, gradient in zip(job.positions, job.gradients, strict=False):
            if gradient is not None:
                bits[self._numbers[position] // 8] |= 1 << (self._numbers[position] % 8)
        return bytes(bits)

    def fill_absent(self, job: Bucket) -> None:
        """Puts means in the place of gradients that only other ranks have."""
        numbers, used = self._numbers, job.used
        job.fill_absent(lambda position: bool(used) and bool(used[numbers[position] // 8] >> (numbers[position] % 8) & 1))

    def read_settings(self, job: Bucket) -> None:
        """Reads scale, learning rate and density of the step, which the calling thread may change later."""
        if self._is_closed:
            raise ExchangeError("it takes no more steps: close() was called")
        if job.index == 0:
            if self.options.scaler is not None:
                job.scale = float(self.options.scaler.get_scale())
            if self.options.optimizer is not None:
                job.lr = float(self.options.optimizer.param_groups[0]["lr"])
            job.density = self.options.density_at(self.view.progress()[0])

    def finish(self) -> None:
        started = time.perf_counter()
        self.await_means()
        waited = time.perf_counter() - started
        self.exposed += waited
        self.step_ended(waited)
        for text in self.watch.news(self.rank):
            warnings.warn(f"gradwire: {text}", stacklevel=2)

    def step_ended(self, waited: float | None) -> None:
        """At every rank, also where there was no backward that waited."""
        auto = self.auto
        if auto is not None and auto.ended(waited, self.view.progress()[4]) and self.rank == 0:
            print(f"gradwire: {auto.text}", file=sys.stderr, flush=True)

    def await_means(self) -> None:
        """Waits until the gradients of all buckets are means, and raises what came in the way of it."""
        try:
            self.wait(for_means=True)
        except BaseException:
            self.core.break_off(f"step {self.view.progress()[0]}: the wait for it was interrupted")
            raise
        failure = self.error()
        if failure is not None:
            raise failure

    def wait(self, for_means: bool = False) -> None:
        """Waits until the engine has nothing left to do, or has failed, or makes no progress."""
        if self.is_forked():
            return
        longest = 2 * self.options.timeout + 5
        while not self.core.wait(for_means):
            # The engine has limits of its own. This one is for faults that should not happen.
            if self.core.idle_seconds() > longest:
                self.failure = PeerLostError(f"nothing moved for {longest:.0f} s (timeout={self.options.timeout:g})")
                self.core.fail(str(self.failure))

    def place_for(self, what: str) -> Place:
        """Where its ranks meet for something else. All of them ask for it in the same order."""
        self._places += 1
        return replace(self.place, name=f"{self.place.name}/{what}/{self._places}")

    def gone(self) -> list[int]:
        """The ranks whose connection with this one has ended, also where nothing was sent since."""
        return [rank for rank in range(self.world) if rank != self.rank and self.core.is_gone(rank)]

    def settle(self) -> None:
        """Waits for what is done behind a step; not for a step under way, whose buckets or ranks may never come."""
        if not self.view.progress()[3]:
            self.wait()

    def close(self) -> None:
        """Ends the thread and the connections."""
        self._is_closed = True
        self.core.close()

    def is_forked(self) -> bool:
        return os.getpid() != self._pid

    def error(self) -> BaseException | None:
        """What has ended the exchange."""
        if self.failure is None and (told := self.core.failure()) is not None:
            self.failure = self._raised or error_of(told, self.view.progress()[0], self.options.timeout)
        return self.failure

    # What the thread of the engine calls, where gradients are not as codecs read them.

    def _fetch(self, job: Bucket) -> tuple[list[_Share], list[tuple[int, int]]]:
        with torch.no_grad():
            self.stage.wait(job.marks)
            if job.on_encode is not None:
                job.on_encode(job)
            with torch.profiler.record_function("gradwire.stage"):
                job.host = self.stage.fetch(job.index, job.gradients)
                lent = self._locate(job)
                lent.copy_in()
            parameters = self._hashed(job)
            job.marks = [*job.marks, parameters]
            return lent.shares, [_bytes_at(one) for one in parameters]

    def _store(self, job: Bucket, is_bad: bool) -> None:
        with torch.no_grad():
            if job.on_decode is not None:
                job.on_decode(job)
            if is_bad:
                for gradient in job.gradients:
                    if gradient is not None:
                        self.stage.fill(gradient, math.nan)
            elif job.lent is not None:
                job.lent.copy_out()
                self.stage.store(job.host, job.gradients)


def _settings(tensors: Sequence[Named], options: Options, auto: Auto | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """What all ranks have to ask for alike."""
    codec = str(Codec(options.codec)) if auto is None else f"auto of {', '.join(map(str, auto.ways))}"
    shapes = zlib.crc32(repr([(tensor.name, tensor.shape) for tensor in tensors]).encode())
    return {
        "version": gradwire.__version__,
        "codec": codec,
        "rules": dict(options.rules or {}),
        "names and shapes of parameters": shapes,
        "seed": options.seed,
        "start_step": options.start_step,
        "check_every": options.check_every,
        "dense_below": options.dense_below,
        "discardable": options.discardable,
        "wire": options.wire,
        "clip_norm": options.clip_norm,
        "scaler": options.scaler is not None,
        "optimizer": options.optimizer is not None,
        **more,
    }


def _done(job: Bucket) -> Callable[[bytes], None]:
    """What the engine calls when it needs the bucket no longer."""

    def done(used: bytes) -> None:
        job.used = used
        job.done()

    return done


def _bytes_at(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a contiguous tensor is."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()
