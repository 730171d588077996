"""Trains the runs of one method side by side."""

import math
import time
from dataclasses import dataclass

import torch
from methods import WORKERS, Exchange, ring
from model import Adapters, Gradients, parts_of
from moments import BETA1, DECAY, AdamW, AMSGrad, Muon, SharedSecondMoment, Signum
from published import PUBLISHED

EVALUATIONS = 20
LAST = 50


@dataclass(frozen=True)
class Task:
    """What is trained, and for how long."""

    text: str
    shape: object
    batches: int
    #: Windows of one worker.
    windows: int
    #: Of methods whose optimizer is AdamW; others, and what Muon leaves to AdamW, keep 0.9.
    beta1: float = BETA1
    beta2: float = 0.95
    #: The task whose dense run at this rate is gone on from.
    begins_from: tuple | None = None
    #: The rank of the adapters that are trained in its place; 0 to train the whole model.
    adapters: int = 0


@dataclass(frozen=True)
class Run:
    """One of those that are trained side by side."""

    rate: float
    seed: int


def train(task, method, runs, text, device, threads, begin=None):
    """The results of the runs, one dictionary each, and their parameters at the end."""
    return Training(task, method, runs, text, device, threads, begin).train()


class Training:
    """Copies in the order of runs, and of workers within each."""

    def __init__(self, task, method, runs, text, device, threads, begin=None):
        self.task, self.method, self.runs, self.device = task, method, runs, device
        self.shape = shape = Adapters(task.shape, begin.to(device), task.adapters) if task.adapters else task.shape
        self.training, self.validation = (part.to(device) for part in text)
        is_new = begin is None or task.adapters
        begins = torch.stack([shape.begin(run.seed) if is_new else begin for run in runs])
        #: What all workers of a run agree on, and what each has.
        self.agreed = begins.to(device)
        self.own = self.agreed.repeat_interleave(WORKERS, 0)
        self.gradients = Gradients(shape, self.own, task.windows)
        seeds = [run.seed for run in runs]
        self.exchange = Exchange(method.codec, shape, len(runs), seeds, threads, method.by_server)
        #: Parts that are exchanged in turn, each with an exchange of its own; and the one on its way: its columns, the mean, and
        #: where workers were.
        self.parts = [
            (part.columns, Exchange(method.codec, part, len(runs), seeds, threads))
            for part in (parts_of(shape, method.fragments) if method.fragments else ())
        ]
        self.under_way = None
        # Of matrices alone.
        decays = [torch.full((math.prod(lengths),), DECAY * (len(lengths) > 1)) for _, lengths, _ in shape.tensors()]
        self.decays = torch.cat(decays).to(device)
        self.rates = torch.tensor([run.rate for run in runs], device=device)[:, None]
        self.places = torch.stack([self._places(run.seed) for run in runs]).to(device)
        self.moments = PUBLISHED[method.sends](self) if method.sends in PUBLISHED else self._moments()
        self.momentum = torch.zeros_like(self.agreed)
        #: The sum of the rates of local steps since an exchange.
        self.passed = torch.zeros_like(self.rates)
        # Small tensors that are kept, one after each batch, would break up the memory that large ones leave.
        self.losses = torch.zeros(task.batches, len(runs), device=device)
        self.evaluations = []

    def _moments(self):
        shape, beta1, beta2 = self.shape, self.task.beta1, self.task.beta2
        like = self.agreed if self.method.sends == "gradients" else self.own
        if self.method.shared:
            return SharedSecondMoment(like, shape, beta2, self.method.shared)
        made = {
            "adamw": lambda: AdamW(like, beta2, beta1),
            "amsgrad": lambda: AMSGrad(like, beta2),
            "muon": lambda: Muon(like, shape, beta2),
            "signum": lambda: Signum(like),
        }
        return made[self.method.optimizer]()

    def _places(self, seed):
        """Where the windows of each batch and worker begin: the same for all methods."""
        random = torch.Generator().manual_seed(1000 + seed)
        most = len(self.training) - self.shape.context - 1
        return torch.randint(most, (self.task.batches, WORKERS, self.task.windows), generator=random)

    def _factor(self, batch):
        """Of the rate: warm-up over a tenth, then cosine to zero."""
        warm = self.task.batches // 10
        if batch < warm:
            return (batch + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (batch - warm) / (self.task.batches - warm)))

    @torch.no_grad()
    def train(self):
        """All batches."""
        began, batches = time.perf_counter(), self.task.batches
        own = {"gradients": self._by_gradients, "updates": self._by_updates, "local": self._locally}
        step = own.get(self.method.sends, self._as_published)
        window = torch.arange(self.shape.context + 1, device=self.device)
        for batch in range(batches):
            places = self.places[:, batch].reshape(len(self.own), -1, 1)
            self.gradients(self.training[places + window])
            self.losses[batch] = self.gradients.losses.view(-1, WORKERS).mean(1)
            step(batch, self.rates * self._factor(batch))
            if (batch + 1) % (batches // EVALUATIONS) == 0:
                self.evaluations.append((batch + 1, self._validate()))
        if self.method.sends == "local" and not self.parts and batches % self.method.every:
            self._agree(batches)
            self.evaluations[-1] = (batches, self._validate())
        return [self._result(at, time.perf_counter() - began) for at in range(len(self.runs))], self.agreed

    def _by_gradients(self, batch, rates):
        mean = clipped(self.exchange.mean(self.gradients.grads, batch))
        self._move(rates, rates * self.moments.update(mean))

    def _by_updates(self, batch, rates):
        # A mean of many workers is clipped where gradients are exchanged; here each clips its own.
        update = self.moments.update(clipped(self.gradients.grads))
        mean = self.exchange.mean(rates.repeat_interleave(WORKERS, 0) * update, batch)
        self._move(rates, mean)

    def _as_published(self, batch, rates):
        self._move(rates, self.moments.update(clipped(self.gradients.grads), rates, batch))

    def _move(self, rates, by):
        """What is agreed on decays, loses this, and goes to all."""
        self.agreed.mul_(1 - rates * self.decays).sub_(by)
        self._spread()

    def _locally(self, batch, rates):
        own = rates.repeat_interleave(WORKERS, 0)
        update = self.moments.update(clipped(self.gradients.grads))
        self.own.mul_(1 - own * self.decays).sub_(own * update)
        self.passed += rates
        if self.parts:
            turn, is_due = divmod(batch + 1, self.method.every // len(self.parts))
            if is_due == 0:
                self._take_turn(turn - 1, batch)
        elif (batch + 1) % self.method.every == 0:
            self._agree(batch)

    def _take_turn(self, turn, batch):
        """What was on its way arrives, and the next part leaves."""
        if self.under_way is not None:
            self._arrive(*self.under_way)
        columns, exchange = self.parts[turn % len(self.parts)]
        sent = self.own[:, columns].clone()
        mean = exchange.mean(self.agreed[:, columns].repeat_interleave(WORKERS, 0) - sent, batch)
        self.under_way = columns, mean, sent

    def _arrive(self, columns, mean, sent):
        self._step_outside(columns, mean)
        self.own[:, columns].add_(self.agreed[:, columns].repeat_interleave(WORKERS, 0) - sent)

    def _step_outside(self, columns, mean):
        """The outer step, by a mean of differences."""
        rate, momentum = self.method.outer
        velocity = self.momentum[:, columns].mul_(momentum).add_(mean)
        self.agreed[:, columns].sub_(rate * (mean + momentum * velocity if momentum else mean))

    def _agree(self, batch):
        mean = self.exchange.mean(self.agreed.repeat_interleave(WORKERS, 0) - self.own, batch)
        self._step_outside(slice(None), mean)
        self._spread()
        if self.method.moments == "remade":
            self.moments.remake_first((mean / self.passed).repeat_interleave(WORKERS, 0))
        elif self.method.moments != "own":
            self._average(getattr(self.moments, self.method.moments))
        self.passed.zero_()

    def _average(self, moment):
        workers = moment.view(len(self.runs), WORKERS, -1)
        workers.copy_(workers.mean(1, keepdim=True))
        self.exchange.bytes += ring(4 * self.shape.size())

    def _spread(self):
        self.own.view(len(self.runs), WORKERS, -1).copy_(self.agreed[:, None])

    def _validate(self):
        """The loss of what is agreed on, over all of the part that validates."""
        context = self.shape.context
        count = (len(self.validation) - 1) // context
        starts = torch.arange(count, device=self.device)[:, None] * context
        windows = self.validation[starts + torch.arange(context + 1, device=self.device)]
        tensors, total = self.shape.views(self.agreed), 0.0
        for some in windows.split(128):
            total = total + len(some) * self.shape.losses(tensors, some.expand(len(self.runs), -1, -1))
        return total / count

    def _result(self, at, seconds):
        exchanges = [self.exchange, *(exchange for _, exchange in self.parts)]
        sent = sum(float(exchange.bytes[at]) for exchange in exchanges) + (self.moments.sent if self.method.shared else 0)
        losses = self.losses[-LAST:, at]
        return {
            "rate": self.runs[at].rate,
            "seed": self.runs[at].seed,
            "parameters": self.shape.size(),
            "batches": self.task.batches,
            "bytes": round(sent),
            "train": round(float(losses.mean()), 5),
            "validation": [[batch, round(float(found[at]), 5)] for batch, found in self.evaluations],
            "seconds": round(seconds, 1),
        }


def clipped(grads):
    """Rows cut to a norm of at most 1."""
    return grads / grads.norm(dim=1, keepdim=True).clamp_min(1.0)
