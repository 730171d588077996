"""What makes updates of gradients: AdamW, AMSGrad, AdamW with a second moment that workers share, Muon, Signum."""

import torch
from methods import WORKERS, ring

BETA1, EPSILON, DECAY = 0.9, 1e-8, 0.01


class AdamW:
    """First and second moments of the rows, and the updates that they make."""

    def __init__(self, like, beta2, beta1=BETA1):
        self.beta1, self.beta2 = beta1, beta2
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)
        self.steps = 0

    def update(self, grads):
        """m / (sqrt(v) + epsilon), both corrected for their beginning."""
        self.square(grads)
        self.first.lerp_(grads, 1 - self.beta1)
        return (self.first / (1 - self.beta1**self.steps)).div_(self.root())

    def square(self, grads):
        """Takes them into the second moment."""
        self.steps += 1
        self.second.mul_(self.beta2).addcmul_(grads, grads, value=1 - self.beta2)

    def root(self):
        """sqrt(v) + epsilon."""
        return self._root_of(self.second)

    def remake_first(self, update):
        """Puts in the first moment what makes this update."""
        self.first.copy_(update * self.root()).mul_(1 - self.beta1**self.steps)

    def _root_of(self, second):
        return (second / (1 - self.beta2**self.steps)).sqrt_().add_(EPSILON)


class AMSGrad(AdamW):
    """AdamW whose second moment never falls. Under top-k of gradients with error feedback it is Comp-AMS (Li et al., arXiv
    2205.05632)."""

    def __init__(self, like, beta2):
        super().__init__(like, beta2)
        self.largest = torch.zeros_like(like)

    def root(self):
        """sqrt(the largest v) + epsilon."""
        return self._root_of(torch.maximum(self.largest, self.second, out=self.largest))


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


class Muon:
    """Muon (Jordan et al., 2024) for the matrices between embedding and output, AdamW for all else, at one rate for both: a
    matrix moves by as much as AdamW moves one (Liu et al., arXiv 2502.16982)."""

    MOMENTUM, SIZE = 0.95, 0.2

    def __init__(self, like, shape, beta2):
        self.shape, self.rest, self.average = shape, AdamW(like, beta2), torch.zeros_like(like)
        self.names = list(shape.matrices())

    def update(self, grads):
        """The sum of a matrix's directions, each of the same length."""
        found = self.rest.update(grads)
        self.average.lerp_(grads, 1 - self.MOMENTUM)
        ahead = self.shape.views(grads.lerp(self.average, self.MOMENTUM))
        targets = self.shape.views(found)
        for name in self.names:
            size = self.SIZE * max(ahead[name].shape[1:]) ** 0.5
            targets[name].copy_(orthogonal(ahead[name]).mul_(size))
        return found


def orthogonal(matrices):
    """The nearest matrices whose singular values are equal, roughly 1: five steps of Newton and Schulz with Muon's factors."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return x.mT if is_tall else x


class Signum:
    """The sign of an average of gradients (Bernstein et al., arXiv 1802.04434)."""

    def __init__(self, like):
        self.average = torch.zeros_like(like)

    def update(self, grads):
        """-1, 0 or 1."""
        return self.average.lerp_(grads, 1 - BETA1).sign()
