"""Rules for embeddings and norms, whatever they are called."""

from __future__ import annotations

import pytest
import torch
from ranks import adamw, ddp, results
from torch import nn

import gradwire.torch
from gradwire.torch import LocalSteps, dense_embeddings_and_norms


class RMSNorm(nn.Module):
    """As models bring it along."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(200))


class Net(nn.Module):
    """With tensors large enough for codecs, an output layer that is the embedding, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(200, 300, bias=False)
        self.words = nn.Embedding(300, 200)
        self.head.weight = self.words.weight
        self.places = nn.Embedding(8, 200).requires_grad_(False)
        self.first = nn.LayerNorm(200)
        self.parts = nn.ModuleDict({"a[*]?": nn.BatchNorm1d(200, track_running_stats=False), "inner": nn.Linear(200, 200)})
        self.last = RMSNorm()

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        inner = self.parts["inner"](self.parts["a[*]?"](self.first(self.words(numbers) + self.places(numbers % 8))))
        return self.head(inner * self.last.scale).square().mean()


DENSE = {"head.weight", "first.weight", "first.bias", "parts.a[*]?.weight", "parts.a[*]?.bias", "last.scale"}


def test_every_embedding_and_norm_that_is_trained_has_a_rule() -> None:
    rules = dense_embeddings_and_norms(Net())
    assert set(rules.values()) == {"none"}
    assert set(rules) == {name.replace("[*]?", "[[][*]][?]") for name in DENSE}
    assert dense_embeddings_and_norms(torch.compile(Net(), backend="eager")) == rules
    assert dense_embeddings_and_norms(nn.Linear(2, 2)) == {}


def kept_back(rank: int, world: int, is_local: bool) -> set[str]:
    """The names of all tensors whose residual is not zero after one exchange."""
    torch.manual_seed(0)
    model, numbers = Net(), torch.arange(40) + rank
    if is_local:
        rules = dense_embeddings_and_norms(model)
        optimizer = LocalSteps(model, adamw(model), "average", 1, "topk:density=0.05", rules=rules)
        model(numbers).backward()
        optimizer.step()
        exchange = optimizer.exchange
    else:
        parallel = ddp(model)
        rules = dense_embeddings_and_norms(parallel)
        exchange = gradwire.torch.compress(parallel, "topk:density=0.05", rules={**rules, "*": "topk:density=0.1"})
        parallel(numbers).backward()
    found = set()
    for name, _ in model.named_parameters():
        try:
            if exchange.residual(name).count_nonzero():
                found.add(name)
        except KeyError:
            continue  # it is sent as it is, or not at all
    return found


@pytest.mark.parametrize("is_local", [False, True])
def test_they_are_sent_as_they_are(is_local: bool) -> None:
    assert results(2, kept_back, is_local) == [{"parts.inner.weight", "parts.inner.bias"}] * 2
