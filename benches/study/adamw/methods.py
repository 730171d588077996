"""What workers exchange with AdamW: gradients, updates, or how far local steps led; and where the bytes are counted."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import gradwire
import numpy as np
import torch

WORKERS = 4


@dataclass(frozen=True)
class Method:
    """One row of the tables."""

    #: "gradients", "updates", "local", or what published.py has.
    sends: str
    codec: str
    #: Of "local": batches between two exchanges.
    every: int = 1
    #: Of "local": rate and Nesterov's momentum of the outer step.
    outer: tuple = (1.0, 0.0)
    #: Of "updates": batches between two exchanges of the factors of a second moment that all workers share; 0 for their own.
    shared: int = 0
    #: Of "gradients" and "local": what makes updates of gradients; of moments.py.
    optimizer: str = "adamw"
    #: Of "local" with AdamW: what an exchange does to the moments of workers. "own": nothing; "remade": first moments are made of
    #: the mean that it led to, as 0/1 Adam does; "first" or "second": that one is averaged, in f32.
    moments: str = "own"
    #: Whether one worker is the server of the others: it sends the mean as a frame of the codec, and keeps back what that lacks.
    by_server: bool = False
    #: Of "local": parts of the model that are exchanged in turn, each once in `every` batches, and each on its way until the turn
    #: of the next, as in Streaming DiLoCo; 0 to exchange the whole at once, without a delay.
    fragments: int = 0


class Exchange:
    """The mean over the workers of each run, by the frames of a codec, and the bytes that a rank sends for it."""

    def __init__(self, spelling, shape, runs, seeds, threads, by_server=False):
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
        self._server = [gradwire.Memory(self._codec, self._layout) for _ in range(runs)] if by_server else None

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
        sent = sum(map(len, frames)) / WORKERS
        if self._server is None:
            # All-gather: a rank sends, on average, one frame to each other.
            self.bytes[run] += (WORKERS - 1) * sent
        else:
            # All others send the server a frame, and it sends one to each of them; of this, the mean over all ranks.
            self.bytes[run] += (WORKERS - 1) * (sent + self._sent_back(run, mean, step)) / WORKERS

    def _sent_back(self, run, mean, step):
        """Makes the mean what a server sends of it, in a frame of so many bytes."""
        told = {"memory": self._server[run], "step": step, "seed": self._seeds[run], "rank": 0}
        back = self._codec.encode(mean.copy(), self._layout, **told)
        mean[:] = 0
        gradwire.add(back, mean, layout=self._layout)
        return len(back)

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
