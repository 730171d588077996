"""What workers exchange with AdamW: gradients, updates, or how far local steps led; and where the bytes are counted."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import gradwire
import numpy as np
import torch

WORKERS = 4
BETA1, EPSILON, DECAY = 0.9, 1e-8, 0.01


@dataclass(frozen=True)
class Method:
    """One row of the tables."""

    #: "gradients", "updates" or "local".
    sends: str
    codec: str
    #: Of "local": batches between two exchanges.
    every: int = 1
    #: Of "local": rate and Nesterov's momentum of the outer step.
    outer: tuple = (1.0, 0.0)
    #: Of "updates": batches between two exchanges of the factors of a second moment that all workers share; 0 for their own.
    shared: int = 0


class Exchange:
    """The mean over the workers of each run, by the frames of a codec, and the bytes that a rank sends for it."""

    def __init__(self, spelling, shape, runs, seeds, threads):
        self.is_dense = spelling == "none"
        self.size = shape.size()
        self.bytes = np.zeros(runs)
        self._seeds = seeds
        self._threads = ThreadPoolExecutor(threads)
        self._host = None
        if self.is_dense:
            return
        self._layout = gradwire.Layout({name: lengths for name, lengths, _ in shape.tensors()})
        # The trainer and the hook apply this key; `encode` leaves it to its caller.
        found = [float(key[6:]) for key in spelling.split(":", 1)[-1].split(",") if key.startswith("decay=")]
        self._decay = found[0] if found else 1.0
        self._codec = gradwire.Codec(spelling)
        memories = self._codec.memory != "none"
        self._memories = [
            [gradwire.Memory(self._codec, self._layout) if memories else None for _ in range(WORKERS)] for _ in range(runs)
        ]

    def mean(self, rows, step):
        """Of the rows, WORKERS for each run: the mean of each run."""
        runs = len(rows) // WORKERS
        if self.is_dense:
            self.bytes += ring(4 * self.size)
            return rows.view(runs, WORKERS, -1).mean(1)
        if self._host is None:
            self._host = torch.empty(rows.shape, pin_memory=rows.is_cuda)
        host = self._host.copy_(rows).numpy()
        means = np.zeros((runs, self.size), np.float32)
        one = self._linear if self._codec.kind == "linear" else self._gathered
        list(self._threads.map(lambda run: one(run, host[run * WORKERS : (run + 1) * WORKERS], means[run], step), range(runs)))
        return torch.from_numpy(means).to(rows.device)

    def _told(self, run, rank, step):
        memory = self._memories[run][rank]
        if memory is not None and self._decay != 1.0:
            memory.decay(self._decay)
        return {"memory": memory, "step": step, "seed": self._seeds[run], "rank": rank}

    def _gathered(self, run, values, mean, step):
        if not np.isfinite(values).all():
            mean[:] = np.nan
            return
        frames = [
            self._codec.encode(own, self._layout, **self._told(run, rank, step)) for rank, own in enumerate(values)
        ]
        for frame in frames:
            gradwire.add(frame, mean, layout=self._layout)
        mean /= WORKERS
        # All-gather: a rank sends, on average, one frame to each other.
        self.bytes[run] += (WORKERS - 1) * sum(map(len, frames)) / WORKERS

    def _linear(self, run, values, mean, step):
        if not np.isfinite(values).all():
            mean[:] = np.nan
            return
        told = [self._told(run, rank, step) for rank in range(WORKERS)]
        ranks = [self._codec.begin(own, self._layout, workers=WORKERS, **one) for own, one in zip(values, told, strict=True)]
        for units in zip(*ranks, strict=True):
            while not units[0].done:
                payloads = [np.asarray(unit.payload) for unit in units]
                assert units[0].reduction == "sum"
                total = np.sum(payloads, axis=0, dtype=np.float32)
                for payload in payloads:
                    payload[:] = total
                self.bytes[run] += ring(total.nbytes)
                for unit in units:
                    unit.advance()
            start, end = units[0].range
            mean[start:end] = units[0].mean


def ring(nbytes):
    """Bytes that a rank sends where a sum goes around a ring."""
    return 2 * (WORKERS - 1) / WORKERS * nbytes


class AdamW:
    """First and second moments of the rows, and the updates that they make."""

    def __init__(self, like, beta2):
        self.beta2 = beta2
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)
        self.steps = 0

    def update(self, grads):
        """m / (sqrt(v) + epsilon), both corrected for their beginning."""
        self.steps += 1
        self.first.lerp_(grads, 1 - BETA1)
        self.second.mul_(self.beta2).addcmul_(grads, grads, value=1 - self.beta2)
        root = (self.second / (1 - self.beta2**self.steps)).sqrt_().add_(EPSILON)
        return (self.first / (1 - BETA1**self.steps)).div_(root)


class SharedSecondMoment:
    """First moments of each worker's own, and a second moment that all workers of a run share: row and column means of the
    squares as in Adafactor, whole squares of vectors, exchanged densely after some steps."""

    def __init__(self, like, shape, beta2, every):
        self.beta2, self.every, self.shape, self.steps, self.shares = beta2, every, shape, 0, 0
        self.first, self._squares = torch.zeros_like(like), torch.zeros_like(like)
        self._root = torch.ones_like(like)
        self._kept = None
        lengths = [lengths for _, lengths, _ in shape.tensors()]
        self.factors = sum(lengths[0] if len(lengths) == 1 else sum(lengths) for lengths in lengths)

    def update(self, grads):
        """m / (sqrt(v) + epsilon)."""
        self.first.lerp_(grads, 1 - BETA1)
        self._squares.addcmul_(grads, grads)
        self.steps += 1
        if self.steps == 1 or self.steps % self.every == 0:
            self._share()
        return (self.first / (1 - BETA1**self.steps)).div_(self._root)

    @property
    def sent(self):
        """Bytes that a rank sent for it."""
        return self.shares * ring(4 * self.factors)

    def _share(self):
        passed = 1 if self.steps == 1 else self.every if self.shares > 1 else self.every - 1
        runs = len(self.first) // WORKERS
        squares = self.shape.views((self._squares / passed).view(runs, WORKERS, -1).mean(1))
        self._squares.zero_()
        means = {name: [part] if part.dim() == 2 else [part.mean(2), part.mean(1)] for name, part in squares.items()}
        kept = self.beta2**passed
        if self._kept is None:
            self._kept = {name: [torch.zeros_like(one) for one in parts] for name, parts in means.items()}
        for name, parts in means.items():
            for old, new in zip(self._kept[name], parts, strict=True):
                old.mul_(kept).add_(new, alpha=1 - kept)
        self.shares += 1
        corrected = 1 - self.beta2**self.steps
        roots = self.shape.views(self._root)
        for name, parts in self._kept.items():
            second = parts[0] if len(parts) == 1 else self._product(*parts)
            root = (second / corrected).sqrt_().add_(EPSILON)
            roots[name].copy_(root.repeat_interleave(WORKERS, 0))

    @staticmethod
    def _product(rows, columns):
        mean = rows.mean(1, keepdim=True).clamp_min(1e-30)
        return rows[:, :, None] * (columns / mean)[:, None, :]
