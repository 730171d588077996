"""Local steps: ranks train alone for some steps, and then exchange how far these led."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._advice import LOCAL_STEPS
from ._agreement import Agreement
from ._at_sites import AtSites
from ._engine import Engine
from ._errors import ExchangeError
from ._fragments import cut as cut_names
from ._fragments import due
from ._led import Led
from ._local_state import Pending, load, saved
from ._optimizer import DistributedOptimizer, cut, strangers
from ._options import AUTO, type_error, whole
from ._outer import Outer, outer_of
from ._plan import local, plain
from ._rejoin import go_on, usable
from ._several import Several
from ._sites import Sites
from ._within import Within, check_whole, own_rules
from ._wrapper import Wrapper

#: Megabytes of differences that travel as one.
_BUCKET_MB = 25.0


class LocalSteps(Wrapper):
    """An optimizer whose ranks take steps alone, and exchange how far these led after every ``every`` steps.

    Make it after the model and the optimizer, and use it in place of the optimizer. All ranks begin with equal parameters
    (:func:`broadcast_parameters`), and take equally many steps::

        optimizer = LocalSteps(model, torch.optim.AdamW(model.parameters()), every=30, codec="topk:density=0.02,values=q4")

    Each rank keeps the parameters of the last exchange. At the next one, the codec gets the kept parameters minus those that
    the steps led to. The mean of what was sent is the gradient of an outer optimizer, which moves the kept parameters, and all
    ranks go on from there. Buffers, as those of batch norm, stay each rank's own.

    With ``fragments`` and ``overlap``, as in Streaming DiLoCo, a slow link is in use all the time, and nobody waits for it.

    :param inner: the optimizer of the steps, with all parameters that are trained; or several, as Muon for matrices and AdamW
        for all else, which step one after the other. Schedules of their rates work as without.
    :param outer: ``"nesterov"`` for DiLoCo's (rate 0.7, momentum 0.9), ``"average"`` to go where ranks are on average, or a
        function that makes an optimizer of the parameters it is given.
    :param codec: its spelling, or ``"auto"``, as in :func:`compress`: the first exchanges are then the trials, and what suits
        the outer optimizer is tried. What is hidden adds at most 5 % to all that ranks do between two exchanges.
    :param every: steps between two exchanges. With 1, ``"average"`` and AdamW inside, AdamW's updates are compressed in place
        of its gradients.
    :param fragments: runs of neighbouring tensors, of nearly equal size, that are exchanged in turn: each once in ``every``
        steps, so one of them after every ``every / fragments``.
    :param overlap: steps that ranks take while an exchange is under way, at most ``every // fragments``. What these steps did
        to a rank's parameters is added to where the exchange led, and is a part of the rank's next difference.
    :param timeout: seconds that a rank waits for another at an exchange before it raises :class:`PeerLostError`, from when
        anything last moved between any two ranks.
    :param check_every: exchanges between two comparisons of the kept parameters of all ranks, by a hash, beside that in the
        first one after ranks have met; 0 for none.
    :param group: the process group of the ranks; by default that of all ranks.
    :param within: the process group of the processes of one site, which DDP or FSDP2 keeps together. ``group`` is then that of
        the processes that have the same place at all sites. Each exchanges its shards, and its part of what is not sharded.
        With ``sites``, which DDP alone goes with, the first process of a site exchanges for all.
    :param sites: ranks that may come, go and be late, in place of a process group. Each calls :meth:`rejoin` before its first
        step.

    All other parameters are those of :func:`compress`. A ``GradScaler`` may step it: a rank whose gradients overflow leaves out
    its own step, and still comes to the exchange with the others.
    """

    # A scaler then calls `step` also where gradients overflow, and says so in `found_inf`.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: torch.nn.Module,
        inner: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        outer: str | Outer = "nesterov",
        every: int = 30,
        codec: str = "none",
        *,
        fragments: int = 1,
        overlap: int = 0,
        group: dist.ProcessGroup | None = None,
        within: dist.ProcessGroup | None = None,
        sites: Sites | None = None,
        rules: Mapping[str, str] | None = None,
        dense_below: int = 128,
        seed: int = 0,
        timeout: float = 600.0,
        check_every: int = 10,
        allow_untested: bool = False,
        network: str | None = None,
        encrypt: bool | None = None,
        wire: str = "f32",
        threads: int | None = None,
    ) -> None:
        """Copies the parameters that are trained."""
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: expected a Module, got {type(model).__name__}")
        if isinstance(inner, list | tuple):
            inner = Several(inner)
        if not isinstance(inner, torch.optim.Optimizer):
            raise TypeError(f"inner: expected an Optimizer, or several, got {type(inner).__name__}")
        self._inner = inner
        self._every = whole("every", every, least=1)
        self._overlap = whole("overlap", overlap)
        _check_turns(every, whole("fragments", fragments, least=1), overlap, codec)
        _check_ranks(codec, group, within, sites)
        #: Since all ranks had equal parameters.
        self._taken = 0
        #: Of the run, of which this rank has gone where they led.
        self._exchanges = 0
        self._pending: Pending | None = None
        check_whole(model, is_of_site=within is not None and sites is None)
        named = [(plain(name), parameter) for name, parameter in model.named_parameters()]
        stepped = _stepped(inner, named)
        names = cut_names({name: parameter.numel() for name, parameter in stepped.items()}, fragments)
        self._within = None if within is None or sites is not None else Within(within, group, stepped, names)
        self._led = None if within is None or sites is None else Led(within, stepped)
        #: What this rank exchanges of each fragment.
        self._names = names if self._within is None else self._within.shares
        #: Whether other sites have exchanged without this one, which joins them when their next exchange is over.
        self._is_late = False
        #: Whether the others began their steps while this site got the parameters. It exchanges as soon as they do.
        self._is_new = False
        self._world = 1
        #: How often this process went where others are.
        self._moves = 0
        if self._follows:
            self._kept, self._at_sites = {}, None
            return
        own = {name for names in self._names for name in names}
        self._kept = {name: (_copy(parameter), parameter) for name, parameter in stepped.items() if name in own}
        kept = {name: start for name, (start, _) in self._kept.items()}
        if self._within is not None and rules:
            rules = own_rules(rules, stepped, own, wire)
        self._connect = functools.partial(
            DistributedOptimizer,
            outer_of(outer, list(kept.values())),
            [(name, kept.get(name, parameter)) for name, parameter in named],
            codec,
            group=group,
            rules=rules,
            dense_below=dense_below,
            seed=seed,
            timeout=timeout,
            check_every=check_every,
            allow_untested=allow_untested,
            network=network,
            encrypt=encrypt,
            wire=wire,
            threads=threads,
            _settings={
                "every": every,
                "fragments": fragments,
                "overlap": overlap,
                "within": self._within and str(self._within),
            },
        )
        self._at_sites = None if sites is None else AtSites(self, sites)
        self._make_outer()

    def _make_outer(self) -> None:
        """Connects the ranks of the process group."""
        self._moves += 1
        self._outer = self._connect(_place=None if self._at_sites is None else self._at_sites.place)
        self._world = self._outer._worker.world
        tensors = {tensor.name: tensor for tensor in self._outer._worker.tensors}
        self._buckets = [cut([tensors[name] for name in names], _BUCKET_MB) for names in [*self._names, self._kept]]
        self.exchange._watch.remedies = LOCAL_STEPS

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """A step of the optimizer inside at this rank, and after every ``every`` of them an exchange of all ranks."""
        loss = self._step_alone(closure)
        self._taken += 1
        fragment = due(self._taken, self._every, len(self._names))
        is_over = self._pending is not None and self._taken - self._pending.begun >= self._overlap
        if fragment is not None or is_over or self._is_late or self._is_new:
            self._together(lambda: self._exchange(fragment))
        return loss

    def _together(self, act: Callable[[], None], *, begins: bool = False) -> None:
        """Does it; at a site of several processes the first one does, and all are then where it is."""
        led = self._led
        if led is None:
            act()
            return
        if not begins:
            led.check(self._exchanges)
        failure, before = None, self._moves
        if led.leads:
            try:
                act()
            except BaseException as error:
                failure = error
        has_moved: int = self._moves > before
        begun = -1 if self._pending is None else self._pending.begun
        are = [self._is_late, self._is_new]
        told = led.tell([has_moved, self._taken, self._exchanges, begun, *are, self._world], failure)
        if not led.leads:
            has_moved, self._taken, self._exchanges, begun, is_late, is_new, self._world = told
            self._is_late, self._is_new = bool(is_late), bool(is_new)
            self._pending = None if begun < 0 else Pending(None, begun, {})
        if has_moved:
            led.share()

    @property
    def _follows(self) -> bool:
        """Whether another process of the site exchanges for this one."""
        return self._led is not None and not self._led.leads

    def _exchange(self, fragment: int | None) -> None:
        """Ends the exchange that is under way, and begins that of a fragment whose turn it is."""
        if self._at_sites is not None and self._is_late:
            # It goes on alone until the others come to their next exchange, or its own is due.
            self._at_sites.meet(waits=fragment is not None)
            return
        if self._at_sites is not None and self._is_new and fragment is None and self._at_sites.others_wait():
            while fragment is None:
                self._taken += 1
                fragment = due(self._taken, self._every, len(self._names))
        came_in = self._end(is_due=fragment is not None)
        if fragment is not None and not came_in:
            self._start(fragment)
            if self._overlap == 0:
                self._end()

    def _step_alone(self, closure: Callable[[], float] | None) -> float | None:
        # Set by a GradScaler.
        found, scale = self.__dict__.get("found_inf"), self.__dict__.get("grad_scale")
        if found is not None and found.item():
            return None
        if scale is not None:
            for group in self._inner.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale)
        return self._inner.step(closure)

    def synchronize(self) -> None:
        """Exchanges all tensors now, at all ranks; does nothing right after that. Call it after the last step of a run.

        An exception leaves the parameters as the steps made them, and the kept ones as they were.
        """
        if self._taken:
            self._together(self._exchange_all)

    def _exchange_all(self) -> None:
        self._end()
        self._start(None)
        self._end()

    def _start(self, fragment: int | None) -> None:
        """Begins an exchange, at sites with those who are there in time; others begin none."""
        if self._at_sites is None:
            self._begin(fragment, None)
        elif (now := self._at_sites.agreed(is_last=fragment is None)) is not None:
            self._begin(fragment, now)

    def _end(self, *, is_due: bool = False) -> bool:
        """Ends the exchange that is under way, if there is one; with ``is_due`` the next one follows at once.

        If sites were lost in it, begins and ends another one. Returns whether this site missed that, and joined anew.
        """
        pending = self._pending
        if pending is None:
            return False
        if self._at_sites is None or pending.agreement is None:
            self._take_pending()
            return False
        if self._at_sites.finish(pending.agreement):
            return self._at_sites.admit(pending.agreement, is_due=is_due)
        self._start(pending.fragment)
        return self._pending is None or self._end(is_due=is_due)

    def _names_of(self, fragment: int | None) -> Iterable[str]:
        return self._kept if fragment is None else self._names[fragment]

    def _begin(self, fragment: int | None, now: Agreement | None) -> None:
        """Hands over how far the steps led, of a fragment or of all tensors."""
        self._pending, self._is_new = Pending(fragment, self._taken, {}, now), False
        with torch.no_grad():
            for name in self._names_of(fragment):
                start, parameter = self._kept[name]
                end = local(parameter)
                # From where the steps began: with parameters of 16 bits, that is the kept one rounded.
                start.grad = (start.to(end.dtype) - end).to(start.dtype)
                if self._overlap and fragment is not None:
                    self._pending.ends[name] = end.clone()
        self._outer._buckets = self._buckets[-1 if fragment is None else fragment]
        self._outer._send_rest(None if self._within is None else self._within.trained_apart(self.exchange.step))

    def _take_pending(self) -> None:
        """Waits for the exchange that is under way, if there is one, and goes where it led."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        self._await_means(pending)
        self._outer.step()
        self._exchanges += 1
        self._moves += 1
        with torch.no_grad():
            for name in self._names_of(pending.fragment):
                start, parameter = self._kept[name]
                end, now = pending.ends.get(name), local(parameter)
                now.copy_(start if end is None else start + (now - end))
                start.grad = None
        if self._within is not None:
            self._within.share(pending.fragment)
        if pending.fragment is None or (len(self._names) == 1 and self._overlap == 0):
            self._taken = 0

    def _await_means(self, pending: Pending) -> None:
        """Waits for the means of the exchange that is under way. Raises where it failed, and at all processes of that site."""
        if self._within is None:
            self._outer.synchronize()
            self._check_means(pending)
            return
        failure = None
        try:
            self._outer.synchronize()
            self._check_means(pending)
        except Exception as error:
            failure = error
        try:
            self._within.check_end(failure)
        except BaseException:
            self._drop_means()
            raise

    def _check_means(self, pending: Pending) -> None:
        moved = [self._kept[name][0] for name in self._names_of(pending.fragment)]
        if not all(bool(start.grad.isfinite().all()) for start in moved if start.grad is not None):
            self._drop_means()
            raise ExchangeError(
                "after its local steps a parameter of some rank was not finite: load the last checkpoint, and lower the "
                "rate or clip gradients"
            )

    @property
    def exchange(self) -> Engine:
        """Counters, log and residuals of the exchanges, as :func:`compress` returns them for DDP; new ones if sites connect."""
        if self._follows:
            raise RuntimeError("exchange: of the processes of a site with sites=, the first one has it")
        return self._outer.exchange

    @property
    def world(self) -> int:
        """How many ranks, or sites, exchange with each other now."""
        return self._world

    @property
    def exchanges(self) -> int:
        """How many exchanges the run has made, up to where this rank is. The same at all ranks after as many steps."""
        return self._exchanges

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer."""
        self._inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """All that this rank needs to go on with the same bits, beside its own model, also between two exchanges.

        Right after an exchange of all tensors the models of all ranks are equal, so one is enough. Waits for the exchange that
        is under way, if there is one.
        """
        if self._follows:
            return {"inner": self._inner.state_dict()}
        return saved(self)

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:  # type: ignore[override]
        """Continues from the :meth:`state_dict` of this rank, or from a list of all old ranks' if their number changed.

        Then all were saved right after an exchange, and rank i takes the inner optimizer of old rank i modulo their number.
        """
        if self._at_sites is not None or self._led is not None:
            raise RuntimeError("load_state_dict: with sites=, pass the state to rejoin()")
        load(self, state_dict)

    def rejoin(self, state_dict: Mapping[str, Any] | None, *, residual_age: int = 20) -> int:
        """Goes on after ranks were lost or came. All call it before their first step, in place of :meth:`load_state_dict`.

        Each passes the :meth:`state_dict` that it saved last, or ``None`` if it has none. The first of those that have seen the
        most exchanges gives its kept parameters and the state of the outer optimizer to those who lack them. Each rank keeps
        its own inner optimizer and residual; one that has missed exchanges keeps less of its residual, and none after
        ``residual_age``. All go on from the parameters that were kept: what a rank did after its last exchange is lost, and so
        is the residual of those that are not there. Without any state, all get the parameters of the first rank.

        With ``within``, each process passes its own. A site whose processes have not all saved after the same exchange comes as
        if it had none. With ``sites``, a rank joins those who are there when their next exchange is over, or begins together
        with others.

        Returns the exchanges that the run has made. An exception is raised at all ranks alike, and changes nothing.
        """
        self._residual_age = whole("residual_age", residual_age, least=1)
        if self._at_sites is None and self._led is None:
            return self._go_on(state_dict)
        self._together(lambda: self._come_in(state_dict), begins=True)
        if self._led is not None:
            self._inner.load_state_dict(self._led.share_object(self._inner.state_dict()))
        return self._exchanges

    def _come_in(self, state_dict: Mapping[str, Any] | None) -> None:
        own, fault = usable(self, state_dict)
        if fault:
            raise ValueError(fault)
        if self._at_sites is not None:
            self._at_sites.come_in(own)

    def _go_on(self, state_dict: Mapping[str, Any] | None) -> int:
        return go_on(self, state_dict, self._residual_age)

    def _forget_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._outer.synchronize()
            self._drop_means()

    def _drop_means(self) -> None:
        self._outer._is_exchanged = False
        for start, _ in self._kept.values():
            start.grad = None

    def close(self) -> None:
        """Ends the thread and the connections. Steps are alone from then on; an exchange is refused."""
        if self._follows:
            return
        self._outer.close()
        if self._at_sites is not None:
            self._at_sites.leave()


def _check_turns(every: int, fragments: int, overlap: int, codec: str) -> None:
    if fragments > every:
        raise ValueError(f"fragments={fragments}: expected at most every, {every}: one is exchanged after a step")
    if overlap > every // fragments:
        raise ValueError(f"overlap={overlap}: expected at most every // fragments, {every // fragments}")
    if fragments > 1 and codec == AUTO:
        raise ValueError("codec='auto': it compares exchanges of all tensors; choose without fragments, then name the codec")


def _check_ranks(codec: str, group: dist.ProcessGroup | None, within: dist.ProcessGroup | None, sites: Sites | None) -> None:
    if sites is not None and not isinstance(sites, Sites):
        raise type_error("sites", sites, "Sites")
    if sites is not None and (group is not None or codec == AUTO):
        raise ValueError("sites: they go together neither with group= nor with codec='auto'")
    if within is not None and codec == AUTO:
        raise ValueError("codec='auto': processes of a site would choose each for itself; with within= name the codec")


def _stepped(inner: torch.optim.Optimizer, named: Sequence[tuple[str, torch.nn.Parameter]]) -> dict[str, torch.nn.Parameter]:
    """The parameters that the optimizer trains."""
    for _, parameter in strangers(inner, {id(parameter) for _, parameter in named}):
        raise ValueError(f"inner: a parameter of shape {tuple(parameter.shape)} is not in the model")
    trained = {id(parameter) for group in inner.param_groups for parameter in group["params"] if parameter.requires_grad}
    if not trained:
        raise ValueError("inner: none of its parameters is trained")
    return {name: parameter for name, parameter in named if id(parameter) in trained}


def _copy(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """What this process has of it, with at least 32 bits."""
    own = local(parameter)
    return torch.nn.Parameter(own.to(torch.promote_types(own.dtype, torch.float32), copy=True))
