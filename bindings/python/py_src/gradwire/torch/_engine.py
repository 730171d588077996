"""The engine of a rank: a thread that encodes, and one that exchanges and decodes, both beside backward."""

from __future__ import annotations

import atexit
import json
import math
import os
import queue
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import torch
import torch.distributed as dist

import gradwire
from gradwire import Codec, EncodeError, Frame, LinearRound, Memory
from gradwire._core import _encode_beside, _load, _mean

from . import _forks
from ._advice import STEPS, Took, advice
from ._errors import (
    ExchangeError,
    OutOfStepError,
    PeerFailedError,
    PeerLostError,
    ReplicasDifferError,
)
from ._joins import END, Joins
from ._lent import Array, Lent, Share, flat_of
from ._options import Options, real, whole
from ._plan import CPU, Group, Named, Part, Plan, Slot, bytes_of
from ._stage import stage_of
from ._state import KEPT, VERSION, State, for_this_rank, memory_from, of_group
from ._stats import Stats
from ._watch import Store, Watch
from ._wire import View, Wire, split

_T = TypeVar("_T")
#: The words that a rank sends with each bucket.
Header: TypeAlias = tuple[int, ...]

_FINE, _NOT_FINITE, _FAILED = range(3)
# Status, step, bucket, checksum of what has to agree, hash of the parameters, shortest time of such a message.
_WORDS = 6
_BITS = 62
_TEXT_BYTES = 512
# A fork waits for so long until the threads rest.
_FORK_SECONDS = 5.0
# These end a step at all ranks alike. Of any other exception, the rank that raised it tells the others.
_KNOWN_TO_ALL = (PeerLostError, PeerFailedError, OutOfStepError, ReplicasDifferError)


@dataclass
class Bucket:
    """What the calling thread hands over: gradients, to be replaced by their means in place."""

    index: int
    is_last: bool
    #: Whether this rank has run out of inputs in DDP's `join`. Its gradients are then zeros, made up so that it takes part in
    #: the exchange, and it makes no steps, so its parameters are old.
    is_idle: bool = False
    #: The tensors, by their positions in the model, and their gradients. If :attr:`Engine.tells_used` is set, `None` stands for
    #: a tensor that this rank did not use; it is replaced if another rank used the tensor. Otherwise there is no `None`.
    positions: tuple[int, ...] = ()
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    #: Gradients that are not there but where backward made them, by their places in the bucket.
    taken: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Called once the gradients are means, or the exchange has failed.
    done: Callable[[], None] = lambda: None
    #: Marks of the stage, set where the gradients were made; and the gradients in memory of the CPU, if that is other memory.
    marks: list[Any] = field(default_factory=list)
    host: list[torch.Tensor | None] = field(default_factory=list)
    #: Whether the next bucket of this number has the same list of gradients, where they are now.
    stays: bool = False
    #: What the encoder makes of the gradients: the header for all ranks, and a frame for each group of the plan.
    header: bytes | None = None
    frames: list[bytes] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    #: Tensors that some rank used; empty unless :attr:`Engine.tells_used` is set.
    used: set[int] = field(default_factory=set)
    scale: float = 1.0
    lr: float | None = None
    density: float | None = None
    failure: BaseException | None = None


@dataclass(frozen=True)
class Loaded:
    """A state that was checked, and what becomes of it here."""

    state: State
    memories: list[tuple[Group, Memory]]
    #: What is kept for tensors that are not sent here.
    apart: dict[str, dict[str, torch.Tensor]]


class Engine:
    """The memories, counters, threads and process group of one model at one rank.

    Buckets go from the calling thread to the encoder, and from there to the thread that calls collectives, always in their
    order: a bucket is encoded while the one before it travels. The encoder begins a step when the other thread is idle.
    """

    #: Whether ranks tell each other which tensors they used.
    tells_used = False

    def __init__(
        self,
        tensors: Sequence[Named],
        parent: dist.ProcessGroup,
        options: Options,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """All ranks of `parent` make theirs in the same order, and with the same further settings."""
        rules = dict(options.rules or {})
        self._device = tensors[0].parameter.device
        self._stage = stage_of(self._device)
        self._tensors = list(tensors)
        self._by_id = {id(tensor.parameter): tensor for tensor in self._tensors}
        self._plan = Plan(self._tensors, options.codec, rules, options.dense_below, discardable=options.discardable)
        self._dense = Plan(self._tensors, "none", {}, 0) if options.start_step else self._plan
        if options.scaler is None and any(tensor.parameter.dtype == torch.float16 for tensor in self._tensors):
            warnings.warn("float16 without scaler=: what is kept back is lost in silence where it underflows", stacklevel=4)
        self._codec, self._rules = str(Codec(options.codec)), rules
        self._seed, self._timeout, self._start_step = options.seed, options.timeout, options.start_step
        self._check_every = options.check_every
        self._scaler, self._optimizer, self._options = options.scaler, options.optimizer, options
        self._step = 0
        # `None` until `set_epoch` was called: codecs are then as they are after their warm-up.
        self._epoch: int | None = None
        self._scale: float | None = None
        self._lr: float | None = None
        self._kept_apart: dict[str, dict[str, torch.Tensor]] = {"residual": {}, "momentum": {}}
        bits = -(-len(self._tensors) // _BITS) * (2 if self.tells_used else 1)
        self._words = _WORDS + max(len(self._plan.groups), 1) + bits
        self._header_format = struct.Struct(f"={self._words}q")
        self._numbers = {tensor.position: number for number, tensor in enumerate(self._tensors)}
        self._shapes = {tensor.position: tuple(tensor.parameter.shape) for tensor in self._tensors}
        self._sizes = {tensor.position: tensor.parameter.numel() for tensor in self._tensors}

        self._wire = Wire(_own_group(parent, options.timeout))
        self._watch = Watch(_store_of(self._wire.group), self._wire.rank, self._wire.world, options.timeout)
        self._log: Path | None = None
        self.loss: float | None = None
        """The loss that the next line of :meth:`log` will hold."""
        self.advice: str | None = None
        """After ten compressed steps: why compression does not pay, if it does not. Rank 0 says it in a warning."""
        self._took: list[Took] = []
        self._before = Took(0.0, 0.0, 0.0)
        self._is_advised = False
        self._skipped = self._checks = self._frame_bytes = self._dense_bytes = self._held = 0
        self._times = {"encode": 0.0, "exchange": 0.0, "decode": 0.0, "exposed": 0.0}
        self._last = self._counts()

        self._agree(options.dense_below, settings or {})
        self._given: queue.SimpleQueue[Bucket | None] = queue.SimpleQueue()
        self._encoded: queue.SimpleQueue[Bucket | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        # Held by the encoder while it changes memories.
        self._coding = threading.Lock()
        self._clocks = threading.Lock()
        # Buckets whose means are not there yet; buckets that keep a thread busy; those of them that are encoded.
        self._unresolved = self._pending = self._travelling = 0
        self._moved = time.monotonic()
        self._failure: BaseException | None = None
        self._expected = 0
        self._is_bad = self._is_closed = self._is_known = self._is_failing = False
        # Whether a step has begun that does not hold yet.
        self._is_under_way = False
        self._agreed = self._done = self._discarded = 0
        # What became of the last step: there is none that could be discarded, or it holds, or it came to nothing.
        self._last_step: Literal["none", "holds", "nothing"] = "none"
        # The collective that the other ranks call next: that of this bucket, or with None the one that ends the step.
        self._awaited: int | None = 0
        # Bytes that go with the header of each bucket. Frames that do not fit take a second collective.
        self._room: dict[int, int] = {}
        # Buckets that go with the next one, and those that do so now.
        self._joins = Joins()
        self._waiting: list[Bucket] = []
        # The gradients of buckets that stay where they are.
        self._lent: dict[int, Lent] = {}
        self._active = self._plan
        self._codecs: list[Codec] = []
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._encode_buckets, "gradwire-encode"), (self._exchange_buckets, "gradwire-exchange"))
        ]
        for thread in self._threads:
            thread.start()
        self._pid = os.getpid()
        #: In a forked process: whether a step was under way, so that its memories may be of any moment.
        self._is_torn = False
        _forks.known.add(self)
        atexit.register(self.close)

    # What the calling thread does.

    def _hand_over(self, job: Bucket) -> None:
        """Gives the encoder a bucket. Buckets come in their order; afterwards :meth:`_finish` waits for their means."""
        if self._failure is None and not all(thread.is_alive() for thread in self._threads):
            self._failure = job.failure or ExchangeError("a thread of the hook has ended")
        if self._failure is not None:
            job.done()
            return
        with self._changed:
            self._is_under_way = True
            self._pending += 1
            self._unresolved += 1
            self._moved = time.monotonic()
        self._given.put(job)

    def _read_settings(self, job: Bucket) -> None:
        """Reads scale, learning rate and density of the step, which the calling thread may change later."""
        if self._is_closed:
            raise ExchangeError("the hook was closed")
        if job.index == 0:
            if self._scaler is not None:
                job.scale = float(self._scaler.get_scale())
            if self._optimizer is not None:
                job.lr = float(self._optimizer.param_groups[0]["lr"])
            job.density = self._options.density_at(self._step)

    def _finish(self) -> None:
        started = time.perf_counter()
        self._await_means()
        self._times["exposed"] += time.perf_counter() - started
        if self.advice is not None and not self._is_advised:
            self._is_advised = True
            if self._wire.rank == 0:
                warnings.warn(f"gradwire: {self.advice}", stacklevel=2)

    def _await_means(self) -> None:
        """Waits until the gradients of all buckets are means, and raises what came in the way of it."""
        try:
            self._wait(lambda: self._unresolved)
        except BaseException:
            self._break_off()
            raise
        if self._failure is not None:
            raise self._failure

    def _break_off(self) -> None:
        """Nobody waits any longer (Ctrl-C): the step comes to nothing, unless it holds already. No thread is waited for."""
        with self._coding:
            if not self._is_under_way:
                return
            self._is_failing = self._is_known = True
            if self._expected:
                self._undo()
        with self._changed:
            if self._failure is None:
                self._failure = ExchangeError(f"step {self._step}: the wait for it was interrupted")
            self._changed.notify_all()

    def _settle(self) -> None:
        """Waits for what the threads do behind a step; not for a step under way, whose buckets or ranks may never come."""
        self._wait(lambda: 0 if self._is_under_way else self._pending)

    def _wait(self, left: Callable[[], int] | None = None) -> None:
        """Waits until the threads have nothing left to do, or have failed, or make no progress."""
        with self._changed:
            while (left() if left else self._pending) and self._failure is None:
                # The collectives have the same timeout. This one is for faults that should not happen.
                patience = self._moved + 2 * self._timeout + 5 - time.monotonic()
                if patience <= 0:
                    self._failure = PeerLostError(
                        f"nothing moved for {2 * self._timeout + 5:.0f} s (timeout={self._timeout:g})"
                    )
                    break
                self._changed.wait(min(patience, 1.0))

    # What the encoder does.

    def _encode_buckets(self) -> None:
        torch.set_grad_enabled(False)
        while (job := self._given.get()) is not None:
            if job.index == 0:
                self._await_idle_exchange()
            with self._coding:
                if job.failure is None and not self._is_failing:
                    try:
                        self._prepare(job)
                    except BaseException as failure:
                        job.failure = failure
            with self._changed:
                self._travelling += 1
            self._encoded.put(job)
        self._encoded.put(None)

    def _await_idle_exchange(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._travelling or self._is_failing or self._is_closed)

    def _prepare(self, job: Bucket) -> None:
        """Makes frames of the bucket's gradients."""
        self._stage.wait(job.marks)
        if job.index == 0:
            self._begin_step(job)
        if job.index != self._expected:
            raise RuntimeError(f"DDP gave bucket {job.index}, expected {self._expected}")
        self._expected += 1
        if self._is_bad:
            return
        job.parts = self._active.parts(job.positions)
        with _profiled("gradwire.stage"):
            job.host = self._stage.fetch(job.index, job.gradients)
        began = time.perf_counter()
        with _profiled("gradwire.encode"):
            job.shares = self._shares(job)
            present = self._load([share for share in job.shares if not share.part.group.is_beside], job.taken)
            job.frames, status = self._encode(job, present)
            job.header = self._header(job, present, status)
            job.taken = {}
        self._clock("encode", began)

    def _shares(self, job: Bucket) -> list[Share]:
        """The bucket's gradients, looked at again only where they have moved."""
        lent = self._lent.get(job.index)
        if lent is None or lent.host is not job.host or lent.parts is not job.parts:
            lent = Lent(job.parts, job.host)
            if job.stays and job.host is job.gradients:
                self._lent[job.index] = lent
        return lent.shares

    # What the thread of the process group does.

    def _exchange_buckets(self) -> None:
        torch.set_grad_enabled(False)
        while (job := self._encoded.get()) is not None:
            if job.index == 0:
                # Of a step that ended before all gradients were there.
                self._resolve(self._waiting)
                self._waiting = []
            jobs = [*self._waiting, job]
            if job.index in self._joins.buckets and not job.is_last and job.failure is None and self._failure is None:
                self._waiting = jobs
                self._rest()
                continue
            self._waiting = []
            try:
                if self._failure is None:
                    self._exchange(jobs)
            except BaseException as failure:
                self._fail(failure)
            self._resolve(jobs)
            # Backward does not wait for this work, but whoever changes memories does.
            if job.is_last and self._failure is None:
                try:
                    with self._coding:
                        for group in self._active.groups:
                            group.end_step()
                    self._judge(job)
                except BaseException as failure:
                    self._fail(failure)
                if self._log is not None:
                    self._write_line(self._log)
            self._rest()

    def _rest(self) -> None:
        """There is nothing left to do for the bucket that came last."""
        with self._changed:
            self._pending -= 1
            self._travelling -= 1
            self._changed.notify_all()

    def _resolve(self, jobs: Sequence[Bucket]) -> None:
        """The gradients of these buckets are means, or will never be."""
        with self._changed:
            for job in jobs:
                job.done()
            self._unresolved -= len(jobs)
            self._moved = time.monotonic()
            self._changed.notify_all()

    def _judge(self, job: Bucket) -> None:
        """After ten compressed steps: whether dense gradients would have been there sooner. All ranks do it alike."""
        now = Took(self._times["encode"], self._times["exchange"], self._times["decode"])
        before, self._before = self._before, now
        sends_all = all(group.kind == "sum" for group in self._active.groups)
        if self._active is not self._plan or sends_all or len(self._took) == STEPS or self._wire.world == 1:
            return
        self._took.append(Took(now.encode - before.encode, now.exchange - before.exchange, now.decode - before.decode))
        if len(self._took) == STEPS:
            dense = self._collective(job, lambda: self._wire.dense_seconds(sum(self._sizes.values())))
            ratio = self._dense_bytes / self._frame_bytes if self._frame_bytes else math.inf
            self.advice = advice(self._took, dense, ratio)

    def _fail(self, failure: BaseException) -> None:
        """Tells the others, if they can be told, and returns to the state that the step began with."""
        if not self._is_known and not isinstance(failure, _KNOWN_TO_ALL):
            try:
                self._tell(failure)
            except Exception as untold:
                failure.add_note(f"gradwire: the other ranks were not told: {untold}")
        # From here on the encoder leaves memories alone.
        self._is_failing = True
        with self._changed:
            self._changed.notify_all()
        with self._coding:
            if self._expected:
                self._undo()
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()

    def _tell(self, failure: BaseException) -> None:
        """Tells the other ranks of the failure, in the collective that they call next."""
        messages, _ = self._gather_messages(
            [self._plain_header(_FAILED)] * len(self._awaited_buckets()), b"", self._awaited_room()
        )
        self._hear([headers[0] for headers in messages], failure)

    def _plain_header(self, status: int, micros: int = 0) -> bytes:
        """Of a message without frames."""
        return self._header_format.pack(status, *[0] * (_WORDS - 2), micros, *[0] * (self._words - _WORDS))

    def _gather_messages(self, headers: Sequence[bytes], own: bytes, room: int) -> tuple[list[list[Header]], list[View]]:
        """The headers of all ranks, of each as many as are given, and with them what its rank has for the others."""
        gathered, begun = self._wire.gather_messages(b"".join(headers), own, room)
        return [list(self._header_format.iter_unpack(headers)) for headers in gathered], begun

    def _awaited_buckets(self) -> list[int]:
        """The buckets whose message the other ranks send next; that which ends a step has one header, as that of one bucket."""
        if self._awaited is None:
            return [END]
        buckets = [self._awaited]
        while buckets[0] - 1 in self._joins.buckets:
            buckets.insert(0, buckets[0] - 1)
        return buckets

    def _awaited_room(self) -> int:
        return sum(self._room.get(bucket, 0) for bucket in self._awaited_buckets())

    def _await(self, bucket: int) -> None:
        """The other ranks send the message next that this bucket is in."""
        while bucket in self._joins.buckets:
            bucket += 1
        self._awaited = bucket

    def _hear(self, headers: Sequence[Header], failure: BaseException | None) -> None:
        """Exchanges the texts of failures, if there is one."""
        failed = [rank for rank, header in enumerate(headers) if header[0] == _FAILED]
        if not failed:
            return
        text = f"{type(failure).__name__}: {failure}".encode() if failure is not None else b""
        own = torch.frombuffer(bytearray(text[:_TEXT_BYTES].ljust(_TEXT_BYTES, bytes(1))), dtype=torch.uint8)
        texts = self._wire.all_gather(own)
        if failure is None:
            told = (f"rank {rank}: {bytes(texts[rank].tolist()).rstrip(bytes(1)).decode(errors='replace')}" for rank in failed)
            raise PeerFailedError(f"step {self._step}: another rank failed: {'; '.join(told)}")

    def _begin_step(self, job: Bucket) -> None:
        if self._expected:
            warnings.warn(f"step {self._step} ended before all gradients were there, and is repeated", stacklevel=1)
            self._undo()
        self._expected, self._is_bad, self._agreed, self._is_under_way = 0, False, 0, True
        self._last_step = "none"
        self._active = self._dense if self._step < self._start_step else self._plan
        self._rescale(job)
        for group in self._active.groups:
            group.begin_step()
        self._codecs = [self._codec_now(group.codec, job.density) for group in self._active.groups]
        told = (job.scale, job.lr, [str(codec) for codec in self._codecs], self._discarded)
        self._agreed = zlib.crc32(repr(told).encode())

    def _codec_now(self, codec: Codec, density: float | None) -> Codec:
        now = codec if self._epoch is None else codec.in_epoch(self._epoch)
        return now if density is None or now.density is None else now.with_density(density)

    def _rescale(self, job: Bucket) -> None:
        """Rescales the residuals, so that they weigh as much as before beside gradients of another scale or learning rate."""
        ratio = 1.0 if self._scale is None or self._scaler is None else job.scale / self._scale
        if self._lr and job.lr:
            ratio *= self._lr / job.lr
        if ratio != 1.0:
            for group in self._plan.groups:
                group.rescale(ratio)
        if self._scaler is not None:
            self._scale = job.scale
        self._lr = job.lr or self._lr

    def _undo(self) -> None:
        for group in self._active.groups:
            group.undo_step()
        self._expected = 0
        self._is_under_way = False

    def _exchange(self, jobs: Sequence[Bucket]) -> None:
        """Exchanges buckets by one message, all but the last of which have waited for it."""
        job = jobs[-1]
        if not self._is_bad:
            self._is_bad = not self._reduce(jobs)
        elif job.failure is not None:
            raise job.failure
        if self._is_bad:
            self._awaited = None
            for one in jobs:
                self._spoil(one)
        self._dense_bytes += 4 * sum(self._sizes[position] for one in jobs for position in one.positions)
        if job.is_last:
            self._end_step(job)
            with self._coding:
                self._hold()

    def _hold(self) -> None:
        """From here on the step holds."""
        self._refuse_if_failing()
        self._last_step = "nothing" if self._is_bad else "holds"
        if self._is_bad:
            self._skipped += 1
            self._undo()
        self._expected = 0
        self._step += 1
        self._done += 1
        self._is_under_way = False

    def _refuse_if_failing(self) -> None:
        if self._is_failing:
            raise ExchangeError(f"step {self._step}: it was broken off")

    def _end_step(self, job: Bucket) -> None:
        """Ends the step: all ranks have the means of all buckets, or hear of a failure now and not in their next step."""
        began = time.perf_counter()
        header = self._plain_header(_FINE, self._joins.own(END))
        messages, _ = self._collective(job, lambda: self._gather_messages([header], b"", 0))
        self._clock("exchange", began)
        self._joins.took(END, time.perf_counter() - began)
        headers = [headers[0] for headers in messages]
        self._hear(headers, None)
        self._joins.heard(END, (header[_WORDS - 1] for header in headers))
        self._joins.end_step(all(group.kind == "frames" for group in self._active.groups) and not self._is_bad)
        self._await(0)

    def _spoil(self, job: Bucket) -> None:
        """Fills the gradients with NaN, so that whoever looks at them, at any rank, sees that the step is not finite."""
        for place, position in enumerate(job.positions):
            gradient = job.gradients[place]
            if gradient is not None:
                self._stage.fill(gradient, math.nan)
            elif position in job.used:
                job.gradients[place] = torch.full(self._shapes[position], math.nan, dtype=torch.float32, device=CPU)

    def _reduce(self, jobs: Sequence[Bucket]) -> bool:
        """Replaces the buckets' gradients by their mean over all ranks; returns whether all of it is finite."""
        began = time.perf_counter()
        with _profiled("gradwire.exchange"):
            messages, received = self._gather(jobs)
        self._clock("exchange", began)
        if received is None:
            return False
        is_finite = True
        for at, job in enumerate(jobs):
            headers = [message[at] for message in messages]
            anywhere = self._union(headers, 0) if any(part.group.kind != "frames" for part in job.parts) else set()
            for part in job.parts:
                if part.group.kind == "rounds":
                    is_finite &= self._rounds(job, part, anywhere)
                elif part.group.kind == "sum":
                    is_finite &= self._sum(job, part, anywhere)
        # This was the last collective of the means. The others hear in the next one of what fails from here on.
        began = time.perf_counter()
        with _profiled("gradwire.decode"):
            starts = [0] * self._wire.world
            for at, job in enumerate(jobs):
                for number, group in enumerate(self._active.groups):
                    ends = [start + message[at][_WORDS + number] for start, message in zip(starts, messages, strict=True)]
                    cuts = [data[start:end] for data, start, end in zip(received, starts, ends, strict=True)]
                    starts = ends
                    for share in job.shares:
                        if share.part.group is group and group.kind == "frames":
                            is_finite &= self._decode(job, share, cuts)
                if is_finite:
                    for part in job.parts:
                        if part.group.kind != "frames":
                            self._give(job, part)
        self._clock("decode", began)
        if is_finite:
            for job in jobs:
                self._stage.store(job.host, job.gradients)
        return is_finite

    def _gather(self, jobs: Sequence[Bucket]) -> tuple[list[list[Header]], list[View] | None]:
        """The headers and frames of all ranks for these buckets: in one collective, if the frames fit in the buckets' room.

        There are no frames where a gradient of a rank is not finite.
        """
        job = jobs[-1]
        if job.failure is not None:
            self._tell(job.failure)
            self._is_known = True
            raise job.failure
        began = time.perf_counter()
        room = sum(self._room.get(one.index, 0) for one in jobs)
        own = b"".join(frame for one in jobs for frame in one.frames)
        messages, begun = self._collective(job, lambda: self._gather_messages([one.header or b"" for one in jobs], own, room))
        if len(jobs) == 1:
            self._joins.took(job.index, time.perf_counter() - began)
        self._hear([headers[0] for headers in messages], None)
        for at, one in enumerate(jobs):
            self._check(one, [headers[at] for headers in messages])
        if job.is_last:
            self._awaited = None
        else:
            self._await(job.index + 1)
        if any(header[0] == _NOT_FINITE for headers in messages for header in headers):
            return messages, None
        sizes = [sum(sum(self._frame_lengths(header)) for header in headers) for headers in messages]
        received = self._collective(job, lambda: self._wire.gather_rest(own, begun, sizes, room))
        for at, one in enumerate(jobs):
            longest = max(sum(self._frame_lengths(headers[at])) for headers in messages)
            self._room[one.index] = longest and longest + longest // 64 + 32
            self._joins.saw(one.index, one.positions, longest)
            self._joins.heard(one.index, (headers[at][_WORDS - 1] for headers in messages))
        self._frame_bytes += len(own)
        return messages, received

    def _frame_lengths(self, header: Header) -> Header:
        """Of the groups of the plan, in bytes."""
        return header[_WORDS : _WORDS + len(self._active.groups)]

    def _give(self, job: Bucket, part: Part) -> None:
        """Copies means from the flat gradient of the group to where DDP or the optimizer looks for them."""
        for slot, place in zip(part.slots, part.places, strict=True):
            gradient, mean = job.host[place], slot.flat
            if gradient is not None:
                gradient.copy_(mean.view(gradient.shape))
            elif slot.tensor.position in job.used:
                job.gradients[place] = mean.clone().view(self._shapes[slot.tensor.position])

    def _load(self, shares: Sequence[Share], taken: Mapping[int, torch.Tensor]) -> set[int]:
        """Copies gradients to where codecs read them; returns which of them are not all zero."""
        present: set[int] = set()
        slots: list[Slot] = []
        arrays: list[Array] = []
        for share in shares:
            share.copy_in()
            for slot, _ in share.absent:
                slot.flat.zero_()
            present.update(slot.tensor.position for slot, _ in share.copied if bool(slot.flat.any()))
            slots += [slot for slot, *_ in share.plain]
            arrays += [flat_of(taken[place]) if place in taken else array for _, place, array in share.plain]
        some = _load([slot.array for slot in slots], arrays)
        return present.union(slot.tensor.position for slot, is_some in zip(slots, some, strict=True) if is_some)

    def _encode(self, job: Bucket, present: set[int]) -> tuple[list[bytes], int]:
        """A frame for each group of the plan, empty where it has none."""
        frames = [b""] * len(self._active.groups)
        for share in job.shares:
            part, group = share.part, share.part.group
            at = self._active.groups.index(group)
            try:
                if group.is_beside:
                    frames[at] = self._encode_beside(share, self._codecs[at], job.taken)
                elif group.kind == "frames":
                    frames[at] = self._encode_part(part, self._codecs[at], present)
            except EncodeError as error:
                if "non-finite" in str(error) or "overflows" in str(error):
                    return frames, _NOT_FINITE
                raise
            # To divide by one changes nothing, and finds values that are not finite.
            if group.kind == "rounds" and any(gradwire.divide(group.array[run], 1) is not None for run in part.runs):
                return frames, _NOT_FINITE
        return frames, _FINE

    def _encode_beside(self, share: Share, codec: Codec, taken: Mapping[int, torch.Tensor]) -> bytes:
        """Encodes gradients where they are. The memory that the step began with stays as it was."""
        group = share.part.group
        if share.gradients is None or group.memory is None or group.before is None:
            return b""
        share.copy_in()
        frame, _ = _encode_beside(
            codec,
            group.before,
            group.memory,
            share.gradients,
            step=self._step,
            seed=self._seed,
            rank=self._wire.rank,
            sources=share.sources(taken),
        )
        group.wrote(share.units)
        return frame

    def _encode_part(self, part: Part, codec: Codec, present: set[int]) -> bytes:
        group = part.group
        units = [slot.unit for slot in part.slots if slot.tensor.position in present]
        if not units:
            return b""
        return codec.encode(
            group.array,
            group.layout,
            group.memory,
            step=self._step,
            seed=self._seed,
            rank=self._wire.rank,
            units=units,
        )

    def _header(self, job: Bucket, present: set[int], status: int) -> bytes:
        """The words that all ranks get with the frames of a bucket."""
        agreed = self._agreed ^ zlib.crc32(repr(job.positions).encode())
        words = [status, self._step, job.index, agreed, 0, self._joins.own(job.index)]
        if job.index == 0 and self._check_every and self._step % self._check_every == 0 and not job.is_idle:
            words[4] = self._hash()
        words += [len(frame) for frame in job.frames]
        summed = (slot.tensor.position for part in job.parts if part.group.kind != "frames" for slot in part.slots)
        bits = self._bits(position for position in summed if position in present)
        if self.tells_used:
            places = zip(job.positions, job.gradients, strict=True)
            bits += self._bits(position for position, gradient in places if gradient is not None)
        return self._header_format.pack(*words, *[0] * (self._words - len(words) - len(bits)), *bits)

    def _bits(self, positions: Iterable[int]) -> list[int]:
        """A set of tensors as words of the header."""
        words = [0] * (-(-len(self._tensors) // _BITS))
        for position in positions:
            number = self._numbers[position]
            words[number // _BITS] |= 1 << (number % _BITS)
        return words

    def _union(self, headers: Sequence[Header], which: int) -> set[int]:
        """Positions that are in a set of some rank: of tensors of linear codecs with a gradient (0), of tensors in use (1)."""
        count = -(-len(self._tensors) // _BITS)
        begin = self._words - count * ((2 if self.tells_used else 1) - which)
        words = [0] * count
        for header in headers:
            words = [word | more for word, more in zip(words, header[begin : begin + count], strict=True)]
        return {
            tensor.position for number, tensor in enumerate(self._tensors) if words[number // _BITS] >> (number % _BITS) & 1
        }

    def _hash(self) -> int:
        value = 0
        for tensor in self._tensors:
            value = zlib.crc32(bytes_of(self._stage.to_host(tensor.parameter)), value)
        return value + 1

    def _check(self, job: Bucket, headers: Sequence[Header]) -> None:
        """Checks that all ranks are at the same place, and have the same parameters; notes what tensors they use."""
        for column, what in (
            (1, "step"),
            (2, "bucket"),
            (3, "scale, learning rate, density, steps discarded, or tensors of the bucket"),
        ):
            values = [header[column] for header in headers]
            if len(set(values)) > 1:
                raise OutOfStepError(f"step {self._step}, bucket {job.index}: the ranks differ in {what}: {values}")
        # Idle ranks send no hash.
        hashes = {header[4] for header in headers if header[4]}
        if len(hashes) > 1:
            raise ReplicasDifferError(self._first_difference(job))
        self._checks += bool(hashes)
        if self.tells_used:
            job.used = self._union(headers, 1)

    def _first_difference(self, job: Bucket) -> str:
        hashes = (zlib.crc32(bytes_of(self._stage.to_host(tensor.parameter))) for tensor in self._tensors)
        own = torch.tensor([-1 if job.is_idle else value for value in hashes], dtype=torch.int64, device=CPU)
        all_hashes = torch.stack(self._collective(job, lambda: self._wire.all_gather(own)))
        for number, tensor in enumerate(self._tensors):
            column = all_hashes[:, number].tolist()
            first = next((rank for rank, value in enumerate(column) if value >= 0), 0)
            others = [rank for rank, value in enumerate(column) if value not in (-1, column[first])]
            if others:
                return f"step {self._step}: {tensor.name} is not what rank {first} has, at ranks {others}"
        return f"step {self._step}: the parameters differ"

    def _collective(self, job: Bucket, call: Callable[[], _T]) -> _T:
        self._watch.begin(self._step)
        try:
            return call()
        except RuntimeError as error:
            raise self._lost(f"step {self._step}, bucket {job.index}", error) from error
        finally:
            self._watch.end()

    def _lost(self, where: str, error: RuntimeError) -> PeerLostError:
        ranks = self._watch.missing()
        who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "a rank"
        why = "or the connection ended" if len(ranks) == 1 else "or a connection ended"
        return PeerLostError(f"{where}: {who} did not answer within {self._timeout:g} s, {why}: {error}", ranks)

    def _decode(self, job: Bucket, share: Share, frames: Sequence[View]) -> bool:
        """Puts the mean of frames, in rank order, in place of gradients. All are checked before any is added."""
        parsed: list[Frame] = []
        for rank, frame in enumerate(frames):
            try:
                if frame:
                    parsed.append(Frame(frame, share.part.group.layout))
            except gradwire.DecodeError as error:
                raise ValueError(f"the frame of rank {rank} is damaged: {error}") from error
        is_finite = _mean(parsed, self._wire.world, share.targets())
        self._held += sum(one.held for one in parsed)
        share.copy_out()
        for slot, place in share.absent:
            position = slot.tensor.position
            if position in job.used:
                job.gradients[place] = share.means[position].view(self._shapes[position])
        return is_finite

    def _divide(self, part: Part) -> bool:
        firsts = [gradwire.divide(part.group.array[run], self._wire.world) for run in part.runs]
        return all(first is None for first in firsts)

    def _clear_unused(self, part: Part, anywhere: set[int]) -> None:
        """Sets tensors for which no rank has a gradient to zero, of the same sign at all ranks."""
        for slot in part.slots:
            if slot.tensor.position not in anywhere:
                part.group.array[slot.range] = 0

    def _sum(self, job: Bucket, part: Part, anywhere: set[int]) -> bool:
        group = part.group
        self._clear_unused(part, anywhere)
        used = [slot.range for slot in part.slots if slot.tensor.position in anywhere]
        if used:
            began = time.perf_counter()
            whole = len(part.runs) == 1 and len(used) == len(part.slots)
            values = group.flat[part.runs[0]] if whole else torch.cat([group.flat[run] for run in used])
            self._collective(job, lambda: self._wire.reduce(values))
            self._frame_bytes += 4 * values.numel()
            self._held += self._wire.world * values.numel()
            self._clock("exchange", began)
            if not whole:
                start = 0
                for run in used:
                    group.flat[run] = values[start : start + run.stop - run.start]
                    start += run.stop - run.start
        return self._divide(part)

    def _rounds(self, job: Bucket, part: Part, anywhere: set[int]) -> bool:
        """Drives all units of a linear codec at once, the payloads of each round in as few collectives as there are kinds."""
        group = part.group
        codec = self._codecs[self._active.groups.index(group)]
        self._clear_unused(part, anywhere)
        used = [slot for slot in part.slots if slot.tensor.position in anywhere]
        if not used:
            return True
        began = time.perf_counter()
        rounds: list[LinearRound] = []
        failure: BaseException | None
        status, failure = _FINE, None
        with self._coding:
            # From here on the memory of the step, and no other, whatever becomes of the step.
            self._refuse_if_failing()
            memory = group.memory
        try:
            rounds = codec.begin(
                group.array,
                group.layout,
                memory,
                step=self._step,
                seed=self._seed,
                rank=self._wire.rank,
                units=[slot.unit for slot in used],
            )
        except EncodeError:
            # Residual and gradient are finite, but their sum is not.
            status = _NOT_FINITE
        except BaseException as error:
            status, failure = _FAILED, error
        self._clock("encode", began)
        began = time.perf_counter()
        own = torch.tensor([status], device=CPU)
        states = self._collective(job, lambda: [(int(state),) for state in self._wire.all_gather(own)])
        self._hear(states, failure)
        if failure is not None:
            self._is_known = True
            raise failure
        if any(state for (state,) in states):
            return False
        active = rounds
        while active:
            kinds: dict[tuple[str, str], list[LinearRound]] = {}
            for unit in active:
                kinds.setdefault((unit.reduction, unit.payload.dtype.str), []).append(unit)
            for (how, _), units in sorted(kinds.items(), key=lambda item: item[0]):
                self._reduce_payloads(job, how == "max", units)
            for unit in active:
                unit.advance(self._wire.world)
            active = [unit for unit in active if not unit.done]
        self._clock("exchange", began)
        is_finite = True
        for unit in rounds:
            start, end = unit.range
            group.array[start:end] = unit.mean
            is_finite &= gradwire.divide(group.array[start:end], 1) is None
        return is_finite

    def _reduce_payloads(self, job: Bucket, is_max: bool, units: list[LinearRound]) -> None:
        payloads = [torch.from_numpy(unit.payload) for unit in units]
        values = payloads[0] if len(payloads) == 1 else torch.cat(payloads)
        self._collective(job, lambda: self._wire.reduce(values, "max" if is_max else "sum"))
        self._frame_bytes += values.numel() * values.element_size()
        self._held += self._wire.world * values.numel()
        if len(payloads) > 1:
            for payload, reduced in zip(payloads, split(values, [payload.numel() for payload in payloads]), strict=True):
                payload.copy_(reduced)

    def _clock(self, what: str, began: float) -> None:
        with self._clocks:
            self._times[what] += time.perf_counter() - began

    # What users call.

    def stats(self) -> Stats:
        """Bytes and times so far."""
        self._settle()
        wire, world = self._wire, self._wire.world
        moved = wire.sent + wire.received
        ring = 4 * self._dense_bytes * (world - 1) / world
        return Stats(
            steps=self._done,
            skipped_steps=self._skipped,
            bytes_sent=wire.sent,
            bytes_received=wire.received,
            frame_bytes=self._frame_bytes,
            dense_bytes=self._dense_bytes,
            ratio=self._dense_bytes / self._frame_bytes if self._frame_bytes else 0.0,
            wire_ratio=ring / moved if moved else 0.0,
            encode_seconds=self._times["encode"],
            exchange_seconds=self._times["exchange"],
            decode_seconds=self._times["decode"],
            staging_seconds=self._stage.seconds,
            exposed_seconds=self._times["exposed"],
            residual_norm=self._norm(),
            hash_checks=self._checks,
        )

    def _norm(self) -> float:
        return math.hypot(*(memory.norm() for memory in self._plan.memories()))

    def state_dict(self) -> dict[str, Any]:
        """All that this rank needs to continue with the same bits: plain values, and copies of tensors by name.

        Every rank saves its own after a step, together with the state of the model and of the optimizer.
        """
        self._settle()
        if self._is_torn:
            raise ExchangeError("state_dict() in a forked process: a step was under way, so call it before the fork")
        with self._coding:
            kept = [state for state in map(of_group, self._plan.groups) if state is not None]
            apart, step, epoch, scale, lr = self._kept_apart, self._step, self._epoch, self._scale, self._lr
        both = {what: dict(apart[what]) for what in KEPT}
        for state in kept:
            for what in KEPT:
                both[what] |= state.pop(what)
        return {
            "version": VERSION,
            "codec": self._codec,
            "rank": self._wire.rank,
            "world": self._wire.world,
            "seed": self._seed,
            "step": step,
            "epoch": epoch,
            "scale": scale,
            "lr": lr,
            **both,
            "groups": kept,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues from what :meth:`state_dict` returned at this rank. An exception changes nothing.

        To continue with fewer or more ranks, pass the states of all old ranks, in rank order, at every new rank. Old rank i
        goes to new rank i modulo the new number, weighted so that the residuals add the same to the mean. Residuals of tensors
        that are not in the model, not trained or sent dense stay under their names, and a warning gives their norms.
        """
        self._take(self._read(state))

    def _read(self, given: object) -> Loaded:
        """All that there is to check of a state."""
        state = for_this_rank(given, self._wire.rank, self._wire.world)
        if state["seed"] != self._seed:
            raise ValueError(f"state: seed {state['seed']}: expected {self._seed}, as it was passed to compress")
        memories, taken = [], set()
        for group in self._plan.groups:
            if group.memory is not None:
                memory, names = memory_from(group, state)
                memories.append((group, memory))
                taken.update(names)
        apart = {what: {name: one.clone() for name, one in state[what].items() if name not in taken} for what in KEPT}
        return Loaded(state, memories, apart)

    def _take(self, loaded: Loaded) -> None:
        """Goes on from there. A step that backward has left in the middle comes to nothing."""
        for name, tensor in loaded.apart["residual"].items():
            if norm := float(tensor.norm()):
                warnings.warn(f"state: {name} is not sent here; what was kept for it, of norm {norm:.3g}, stays", stacklevel=3)
        self._wait()
        with self._coding:
            if self._expected:
                self._undo()
            for group, memory in loaded.memories:
                group.replace(memory)
            self._last_step = "none"
            state, self._kept_apart = loaded.state, loaded.apart
            self._step, self._epoch, self._scale, self._lr = (state[key] for key in ("step", "epoch", "scale", "lr"))

    def rescale(self, ratio: float) -> None:
        """Multiplies the residuals: by the old learning rate over the new one when it changes. All ranks call it alike.

        With ``optimizer=`` the hook does it by itself.
        """
        ratio = real("ratio", ratio, math.isfinite, "a finite number")
        self._wait()
        self._last_step = "none"
        for group in self._plan.groups:
            group.rescale(ratio)

    def discard(self) -> None:
        """Forgets the last step: what it left in the memories goes. For a gradient that the loop throws away.

        Without it, error feedback would send the rest of that gradient with later ones. Call it after backward and in place of
        ``optimizer.step()``, at all ranks or at none: ranks that differ raise :class:`OutOfStepError` in the next step. A step
        whose gradients were not finite has left nothing. Codecs with momentum or factors need ``discardable=True``.
        """
        self._settle()
        with self._coding:
            if self._is_under_way or self._last_step == "none":
                raise ExchangeError("discard: there is no step to discard; call it once, between a backward and the next")
            stays = [str(group.codec) for group in self._active.groups if not group.is_discardable]
            if stays:
                raise ExchangeError(f"discard: {stays[0]} keeps more than error feedback: pass discardable=True to compress")
            if self._last_step == "holds":
                for group in self._active.groups:
                    group.undo_step()
            self._last_step = "none"
            self._discarded += 1

    def set_epoch(self, epoch: int) -> None:
        """Tells codecs with ``warmup=`` the epoch, counted from 0. Call it at the start of each epoch, at all ranks.

        Until it is called there is no warm-up.
        """
        epoch = whole("epoch", epoch)
        self._wait()
        self._epoch = epoch

    def residual(self, name: str) -> torch.Tensor:
        """A copy of the residual of one tensor."""
        self._settle()
        with self._coding:
            for group in self._plan.groups:
                if group.kept is not None and name in group.names:
                    return torch.from_numpy(group.kept.tensor(name).copy())
        raise KeyError(f"{name!r}: nothing is kept for a tensor of this name; see the keys of state_dict()['residual']")

    @property
    def step(self) -> int:
        """The number of the next step."""
        self._settle()
        return self._step

    def log(self, path: str | Path) -> None:
        """Appends a line for each step to a file, at rank 0, with the keys of the trainer's ``metrics.jsonl``.

        Bytes are sums over all ranks; times and the norm are those of rank 0. ``hook.loss`` is the loss of the line.
        """
        if self._wire.rank == 0:
            with Path(path).open("a"):
                self._log = Path(path)

    def _counts(self) -> dict[str, float]:
        return {
            "bytes": self._wire.total,
            "moved": self._wire.sent + self._wire.received,
            "frame": self._frame_bytes,
            "dense": self._dense_bytes,
            "held": self._held,
            **self._times,
        }

    def _write_line(self, log: Path) -> None:
        """The training goes on whatever comes of it: a full disk, or a loss that is no number."""
        try:
            line = json.dumps(self._line())
            with log.open("a") as file:
                file.write(line + "\n")
        except Exception as error:
            self._log = None
            warnings.warn(f"the log ends: {type(error).__name__}: {error}", stacklevel=1)

    def _line(self) -> dict[str, Any]:
        now = self._counts()
        delta = {key: value - self._last[key] for key, value in now.items()}
        self._last = now
        world, dense = self._wire.world, delta["dense"]
        densities = [codec.density for codec in self._codecs if codec.density is not None]
        loss = None if self.loss is None else float(self.loss)
        return {
            "step": self._step - 1,
            "codec": self._codec,
            "epoch": self._epoch or 0,
            "loss": loss if loss is not None and math.isfinite(loss) else None,
            "lr": self._lr or 0.0,
            "bytes_up": int(delta["bytes"]),
            "bytes_down": int(delta["bytes"]),
            "ratio": dense / delta["frame"] if delta["frame"] and not self._is_bad else None,
            "wire_ratio": 4 * dense * (world - 1) / world / delta["moved"] if delta["moved"] else None,
            "contributors": world,
            "encode_ns": int(1e9 * delta["encode"]),
            "exchange_ns": int(1e9 * delta["exchange"]),
            "decode_ns": int(1e9 * delta["decode"]),
            "residual_norm": self._norm(),
            "density": delta["held"] / (world * dense / 4) if dense else 0.0,
            "target_density": densities[0] if densities else None,
        }

    def close(self) -> None:
        """Ends the threads and the process group. Called when the interpreter exits, which it delays by two seconds at most."""
        if self._is_forked():
            return
        if not self._is_closed:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._given.put(None)
            self._watch.close()
            atexit.unregister(self.close)
        ends = time.monotonic() + 2
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(ends - time.monotonic(), 0))
        if not any(thread.is_alive() for thread in self._threads):
            self._wire.close(is_idle=self._failure is None)

    def before_fork(self) -> None:
        """Lets the threads end what they do behind a step; does not wait for a step under way."""
        if threading.current_thread() not in self._threads:
            with self._changed:
                self._changed.wait_for(lambda: self._is_under_way or not self._pending or self._failure, _FORK_SECONDS)

    def after_fork(self) -> None:
        """In the child: nothing waits for threads that are not there, nor for locks that they held."""
        self._is_torn = self._is_under_way or self._pending > 0 or self._coding.locked()
        self._changed, self._coding, self._clocks = threading.Condition(), threading.Lock(), threading.Lock()
        self._failure = ExchangeError("this process was forked from that of the hook, and only that one takes steps")

    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__}: it has threads, and is neither copied nor pickled: save its state_dict()")

    def _agree(self, dense_below: int, settings: Mapping[str, Any]) -> None:
        """Checks that all ranks were asked for the same."""
        shapes = zlib.crc32(repr([(tensor.name, tensor.shape) for tensor in self._tensors]).encode())
        own: dict[str, Any] = {
            "version": gradwire.__version__,
            "codec": self._codec,
            "rules": self._rules,
            "names and shapes of parameters": shapes,
            "seed": self._seed,
            "start_step": self._start_step,
            "check_every": self._check_every,
            "dense_below": dense_below,
            "scaler": self._scaler is not None,
            "optimizer": self._optimizer is not None,
            **settings,
        }
        every: list[dict[str, Any]] = [own] * self._wire.world
        dist.all_gather_object(every, own, group=self._wire.group)
        for key in own:
            values = [other.get(key) for other in every]
            if any(value != values[0] for value in values):
                raise ValueError(f"the ranks differ in {key}: {values}")


def _profiled(name: str) -> AbstractContextManager[Any]:
    """A range of the profiler, if one runs: to enter a range takes as long as a small collective."""
    is_on = getattr(torch.autograd.profiler, "_is_profiler_enabled", True)
    entered: AbstractContextManager[Any] = torch.profiler.record_function(name) if is_on else nullcontext()
    return entered


def _own_group(parent: dist.ProcessGroup, timeout: float) -> dist.ProcessGroup:
    ranks = dist.get_process_group_ranks(parent)
    is_whole = len(ranks) == dist.get_world_size()
    group = dist.new_group(
        None if is_whole else ranks,
        timeout=timedelta(seconds=timeout),
        backend="gloo",
        use_local_synchronization=not is_whole,
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


def _store_of(group: dist.ProcessGroup) -> Store | None:
    """Where the ranks of the group met; `None` where this version of torch keeps it elsewhere."""
    try:
        store: Store = dist.distributed_c10d._world.pg_map[group][1]
    except (AttributeError, KeyError, IndexError):
        return None
    return store
