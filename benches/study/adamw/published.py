"""Methods of others that own what is exchanged and the step: each has a function that makes the agreed step of one batch."""

import math

import torch
from methods import WORKERS, ring
from moments import BETA1, EPSILON, AdamW, Signum


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
        self.exchange, self.frequencies = training.exchange, Frequencies(training.shape, training.device)

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
        self.size = training.shape.size()

    def update(self, grads, rates, batch):
        """What the parameters lose."""
        if batch < self.dense:
            self.exchange.bytes += ring(4 * self.size)
            return rates * self.moments.update(grads.view(-1, WORKERS, self.size).mean(1))
        own = self.moments.first.repeat_interleave(WORKERS, 0).lerp_(grads, 1 - BETA1)
        self.moments.first.copy_(self.exchange.mean(own, batch))
        return rates * self.moments.first / self.moments.root()


class ZeroOneAdam:
    """0/1 Adam (Lu et al., arXiv 2202.06009) without its local steps: from the first batch on, workers exchange signs of the rate
    times their first moments. Dense gradients make the second moment: in each batch at first, and in half as many of them after
    every 16 that had one."""

    UPDATES = 16

    def __init__(self, training):
        self.exchange, self.moments = training.exchange, AdamW(training.agreed, training.task.beta2)
        self.size = training.shape.size()
        self.due = 0

    def update(self, grads, rates, batch):
        """What the parameters lose."""
        moments = self.moments
        if batch == self.due:
            self.exchange.bytes += ring(4 * self.size)
            moments.square(grads.view(-1, WORKERS, self.size).mean(1))
            self.due += 2 ** (moments.steps // self.UPDATES)
        own = moments.first.repeat_interleave(WORKERS, 0).lerp_(grads, 1 - BETA1)
        moved = self.exchange.mean(rates.repeat_interleave(WORKERS, 0) * own, batch)
        moments.first.copy_(moved / rates)
        return moved / moments.root()


class Projected:
    """The states of LDAdam (Robert et al., arXiv 2410.16103) in the factors of PowerSGD: workers agree on a low-rank form of the
    mean of residual + gradient of each matrix, and AdamW's moments are those of the smaller factor. When the basis turns, they
    turn with it, and what the first moment loses joins the residual. Vectors are exchanged densely, under AdamW."""

    def __init__(self, training):
        self.exchange, self.shape, self.beta2 = training.exchange, training.shape, training.task.beta2
        self.rank, self.steps = int(training.method.codec.partition("rank=")[2]), 0
        self.residual, self.vectors = torch.zeros_like(training.own), AdamW(training.agreed, self.beta2)
        random = torch.Generator().manual_seed(0)
        runs, lengths = len(training.agreed), {name: lengths for name, lengths, _ in self.shape.tensors()}
        self.matrices = {name: sides for name, sides in lengths.items() if len(sides) == 2}
        numbers = sum(self.rank * sum(sides) for sides in self.matrices.values())
        numbers += sum(sides[0] for sides in lengths.values() if len(sides) == 1)
        self.bytes, self.states = ring(4 * numbers), {}
        for name, (high, wide) in self.matrices.items():
            start = torch.randn(wide, self.rank, generator=random).to(training.device).expand(runs, -1, -1)
            moments = torch.zeros(2, runs, self.rank, wide, device=training.device)
            self.states[name] = [torch.zeros(runs, high, self.rank, device=training.device), start, *moments]

    def update(self, grads, rates, batch):
        """What the parameters lose."""
        self.steps += 1
        self.exchange.bytes += self.bytes
        means = grads.view(-1, WORKERS, grads.shape[1]).mean(1)
        found = self.vectors.update(means)
        self.residual += grads
        kept, moves = self.shape.views(self.residual), self.shape.views(found)
        for name in self.matrices:
            moves[name].copy_(self._of_matrix(name, kept[name]))
        for name, part in kept.items():
            if name not in self.matrices:
                part.zero_()
        return rates * found

    def _of_matrix(self, name, kept):
        """AdamW's step in the factors; `kept` becomes what these lack."""
        before, right, first, second = self.states[name]
        whole = kept.view(-1, WORKERS, *kept.shape[1:])
        basis = torch.linalg.qr((whole @ right[:, None]).mean(1))[0]
        right = (whole.mT @ basis[:, None]).mean(1)
        turn = basis.mT @ before
        turned = turn @ first
        lost = before @ first - basis @ turned
        spread = (turn.square() @ (second - first.square())).add_(turned.square()).clamp_min_(0)
        whole.sub_((basis @ right.mT)[:, None]).add_(lost[:, None], alpha=BETA1 / (1 - BETA1))
        first = turned.lerp(right.mT, 1 - BETA1)
        second = self.beta2 * spread + (1 - self.beta2) * right.mT.square()
        self.states[name] = [basis, right, first, second]
        root = (second / (1 - self.beta2**self.steps)).sqrt_().add_(EPSILON)
        return basis @ (first / (1 - BETA1**self.steps) / root)


PUBLISHED = {
    "votes": Votes,
    "demo": DeMo,
    "estimates": Estimates,
    "1-bit-adam": OneBitAdam,
    "0/1-adam": ZeroOneAdam,
    "projected": Projected,
}


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
