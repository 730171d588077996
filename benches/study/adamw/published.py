"""Methods of others that own what is exchanged and the step: each has a function that makes the agreed step of one batch."""

import math

import torch
from methods import WORKERS, ring
from moments import BETA1, AdamW, Signum


class Votes:
    """Signum with a majority vote: a worker sends the sign of its own average (Bernstein et al., arXiv 1810.05291)."""

    def __init__(self, training):
        self.exchange, self.signum = training.exchange, Signum(training.own)

    def update(self, grads, rates, batch):
        """What the parameters lose."""
        return rates * self.exchange.mean(self.signum.update(grads), batch).sign()


class DeMo:
    """Each worker keeps a momentum, and sends the largest frequencies of it, which it loses; the step is the sign of the mean
    (Peng et al., arXiv 2411.19870). The codec's residual is that momentum, and the codec's `decay=` its decay. The mean is over
    all workers, where the original's is over those that sent a frequency."""

    def __init__(self, training):
        self.exchange, self.frequencies = training.exchange, Frequencies(training.task.shape, training.device)

    def update(self, grads, rates, batch):
        """What the parameters lose."""
        sent = self.frequencies.of(rates.repeat_interleave(WORKERS, 0) * grads)
        return rates * self.frequencies.back(self.exchange.mean(sent, batch)).sign()


class Estimates:
    """EF21-SGDM (Fatkhullin et al., arXiv 2305.15155) under AdamW: each worker averages its gradients, all know an estimate of
    that average, and a worker sends what its estimate lacks. That is what a residual holds if the codec gets by how much the
    average moved. Averages are AdamW's first moment."""

    def __init__(self, training):
        self.exchange, self.average = training.exchange, torch.zeros_like(training.own)
        self.known, self.moments = torch.zeros_like(training.agreed), AdamW(training.agreed, training.task.beta2, beta1=0)

    def update(self, grads, rates, batch):
        """What the parameters lose."""
        moved = (grads - self.average) * (1 - BETA1)
        self.average += moved
        self.known += self.exchange.mean(moved, batch)
        return rates * self.moments.update(self.known)


class OneBitAdam:
    """1-bit Adam (Tang et al., arXiv 2102.02888): AdamW with dense gradients for the first 15 % of the batches, as long as its
    paper's runs of BERT; then the second moment stays, and workers exchange signs of first moments."""

    DENSE = 0.15

    def __init__(self, training):
        self.exchange, self.moments = training.exchange, AdamW(training.agreed, training.task.beta2)
        self.dense = round(self.DENSE * training.task.batches)
        self.size = training.task.shape.size()

    def update(self, grads, rates, batch):
        """What the parameters lose."""
        if batch < self.dense:
            self.exchange.bytes += ring(4 * self.size)
            return rates * self.moments.update(grads.view(-1, WORKERS, self.size).mean(1))
        own = self.moments.first.repeat_interleave(WORKERS, 0).lerp_(grads, 1 - BETA1)
        self.moments.first.copy_(self.exchange.mean(own, batch))
        return rates * self.moments.first / self.moments.root()


PUBLISHED = {"votes": Votes, "demo": DeMo, "estimates": Estimates, "1-bit-adam": OneBitAdam}


class Frequencies:
    """The orthonormal cosine transform of each tensor, by tiles whose sides are the largest divisors up to 64."""

    def __init__(self, shape, device):
        self.shape = shape
        self.sides = {name: [side_of(length) for length in lengths] for name, lengths, _ in shape.tensors()}
        self.waves = {side: waves(side).to(device) for sides in self.sides.values() for side in sides}

    def of(self, rows):
        """A tile behind the other, so that a codec's chunks are tiles."""
        parts = []
        for name, tensor in self.shape.views(rows).items():
            high, wide, tiles = self._tiles(name, tensor)
            parts.append((high @ tiles.transpose(2, 3) @ wide.mT).reshape(len(rows), -1))
        return torch.cat(parts, 1)

    def back(self, rows):
        """The inverse of `of`."""
        found = torch.empty_like(rows)
        for (name, target), part in zip(self.shape.views(found).items(), self.shape.views(rows).values(), strict=True):
            high, wide, tiles = self._tiles(name, target)
            tiles.transpose(2, 3).copy_(high.mT @ part.reshape(tiles.transpose(2, 3).shape) @ wide)
        return found

    def _tiles(self, name, tensor):
        """The waves of both sides, and the tensor as copies, down, down within a tile, across, across within a tile."""
        *above, last = self.sides[name]
        high = above[0] if above else 1
        down = tensor.shape[1] // high if above else 1
        tiles = tensor.view(len(tensor), down, high, -1, last)
        return self.waves[high] if above else torch.ones(1, 1, device=tensor.device), self.waves[last], tiles


def side_of(length, most=64):
    """The largest divisor up to `most`."""
    return max(side for side in range(1, most + 1) if length % side == 0)


def waves(count):
    """The cosines of a transform of so many values, one frequency a row."""
    at = torch.arange(count, dtype=torch.float64)
    found = torch.cos(math.pi / count * at[:, None] * (at[None] + 0.5)) * math.sqrt(2 / count)
    found[0] /= math.sqrt(2)
    return found.float()
