"""Many copies of a small GPT, one for each worker of each run, trained side by side on one device."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from gradwire.torch._fragments import cut


class Tensors:
    """Tensors one behind the other in a flat row for each copy. `tensors()` has the name, the shape, and the standard deviation
    at the beginning of each; None for a scale of ones."""

    def size(self):
        """Parameters of one copy."""
        return sum(math.prod(shape) for _, shape, _ in self.tensors())

    def begin(self, seed):
        """The parameters of one copy, flat."""
        random = torch.Generator().manual_seed(seed)
        parts = []
        for _, shape, deviation in self.tensors():
            if deviation is None:
                parts.append(torch.ones(math.prod(shape)))
            else:
                parts.append(deviation * torch.randn(math.prod(shape), generator=random))
        return torch.cat(parts)

    def matrices(self):
        """The names and sides of those between embedding and output."""
        return {name: sides for name, sides, _ in self.tensors() if len(sides) == 2 and name not in ("words", "places")}

    def views(self, flat):
        """The tensors of copies that lie in the rows of `flat`."""
        found, start = {}, 0
        for name, shape, _ in self.tensors():
            length = math.prod(shape)
            found[name] = flat[:, start : start + length].view(len(flat), *shape)
            start += length
        return found


@dataclass(frozen=True)
class Part(Tensors):
    """Some neighbouring tensors of another."""

    some: tuple
    columns: slice

    def tensors(self):
        """Of each copy."""
        return self.some


def parts_of(shape, count):
    """So many parts of nearly equal size, as `LocalSteps` cuts them."""
    found, start = [], 0
    tensors = {name: (name, lengths, deviation) for name, lengths, deviation in shape.tensors()}
    for names in cut({name: math.prod(lengths) for name, lengths, _ in tensors.values()}, count):
        some = tuple(tensors[name] for name in names)
        end = start + sum(math.prod(lengths) for _, lengths, _ in some)
        found.append(Part(some, slice(start, end)))
        start = end
    return found


@dataclass(frozen=True)
class Shape(Tensors):
    """Of one GPT; the embedding is also the output layer."""

    words: int
    width: int
    layers: int
    heads: int
    context: int

    def tensors(self):
        """Of each copy."""
        d, behind = self.width, 0.02 / math.sqrt(2 * self.layers)
        found = [("words", (self.words, d), 0.02), ("places", (self.context, d), 0.02)]
        for layer in range(self.layers):
            found += [
                (f"{layer}.norm1.scale", (d,), None),
                (f"{layer}.norm1.shift", (d,), 0.0),
                (f"{layer}.ask", (d, 3 * d), 0.02),
                (f"{layer}.answer", (d, d), behind),
                (f"{layer}.norm2.scale", (d,), None),
                (f"{layer}.norm2.shift", (d,), 0.0),
                (f"{layer}.widen", (d, 4 * d), 0.02),
                (f"{layer}.narrow", (4 * d, d), behind),
            ]
        return [*found, ("norm.scale", (d,), None), ("norm.shift", (d,), 0.0)]

    def losses(self, tensors, tokens):
        """The mean loss of each copy on its windows: `tokens` has copies, windows, and one token more than the context."""
        copies, windows, _ = tokens.shape
        inputs, targets = tokens[:, :, :-1], tokens[:, :, 1:]
        first = torch.arange(copies, device=tokens.device)[:, None, None] * self.words
        x = F.embedding(inputs + first, tensors["words"].reshape(copies * self.words, self.width))
        x = (x + tensors["places"][:, None, : inputs.shape[2]]).reshape(copies, -1, self.width)
        for layer in range(self.layers):
            x = x + self._attend(tensors, layer, self._norm(x, tensors, f"{layer}.norm1"), windows)
            wide = F.gelu(self._norm(x, tensors, f"{layer}.norm2") @ tensors[f"{layer}.widen"])
            x = x + wide @ tensors[f"{layer}.narrow"]
        logits = self._norm(x, tensors, "norm") @ tensors["words"].transpose(1, 2)
        found = F.cross_entropy(logits.reshape(-1, self.words), targets.reshape(-1), reduction="none")
        return found.view(copies, -1).mean(1)

    def _norm(self, x, tensors, name):
        return F.layer_norm(x, (self.width,)) * tensors[f"{name}.scale"][:, None] + tensors[f"{name}.shift"][:, None]

    def _attend(self, tensors, layer, x, windows):
        copies, all_tokens, d = x.shape
        split = (copies * windows, all_tokens // windows, 3, self.heads, d // self.heads)
        asked, keys, values = (x @ tensors[f"{layer}.ask"]).view(split).permute(2, 0, 3, 1, 4).unbind()
        found = F.scaled_dot_product_attention(asked, keys, values, is_causal=True)
        return found.transpose(1, 2).reshape(copies, all_tokens, d) @ tensors[f"{layer}.answer"]


class Adapters(Tensors):
    """Of a GPT whose own parameters stay as they are: two narrow matrices for each one between embedding and output, whose product
    is added to it (LoRA, Hu et al., arXiv 2106.09685)."""

    FACTOR = 2

    def __init__(self, shape, whole, rank):
        self.shape, self.whole, self.rank = shape, whole, rank
        self.context = shape.context

    def tensors(self):
        """Of each copy; the products are zero at the beginning."""
        found = []
        for name, (high, wide) in self.shape.matrices().items():
            found += [(f"{name}.down", (high, self.rank), 1 / math.sqrt(high)), (f"{name}.up", (self.rank, wide), 0.0)]
        return found

    def losses(self, tensors, tokens):
        """As those of the whole model."""
        whole = {name: part.expand(len(tokens), *part.shape[1:]) for name, part in self.shape.views(self.whole[None]).items()}
        for name in self.shape.matrices():
            whole[name] = whole[name] + self.FACTOR * tensors[f"{name}.down"] @ tensors[f"{name}.up"]
        return self.shape.losses(whole, tokens)


class Gradients:
    """The gradients of all copies, flat; on CUDA the whole pass is recorded once and then replayed."""

    def __init__(self, shape, flat, windows):
        self.shape = shape
        self.tokens = torch.zeros(len(flat), windows, shape.context + 1, dtype=torch.int64, device=flat.device)
        self.grads = torch.zeros_like(flat)
        self.losses = torch.zeros(len(flat), device=flat.device)
        self._leaves = [part.requires_grad_() for part in shape.views(flat.detach()).values()]
        self._parts = list(shape.views(self.grads).values())
        self._graph = None

    def __call__(self, tokens):
        """Fills `grads` and `losses`."""
        self.tokens.copy_(tokens)
        if self.tokens.device.type == "cpu":
            self._pass()
        else:
            if self._graph is None:
                self._record()
            self._graph.replay()

    def _record(self):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._pass()
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._pass()

    def _pass(self):
        names = [name for name, _, _ in self.shape.tensors()]
        with torch.enable_grad():
            losses = self.shape.losses(dict(zip(names, self._leaves, strict=True)), self.tokens)
            found = torch.autograd.grad(losses.sum(), self._leaves)
        torch._foreach_copy_(self._parts, list(found))
        self.losses.copy_(losses.detach())
