#!/usr/bin/env python3
"""Milliseconds for a gradient of every model of the trainer, beside PyTorch on the same shapes.

    python benches/steps_against_pytorch.py [--rows step_times.jsonl]

Runs `cargo run --release -p gradwire-trainer --example step_times` (or reads what it printed before), then the
same networks in PyTorch on one thread, and prints a table for Markdown. Needs `torch`. A measurement is only
worth something on a machine that does nothing else.
"""

import argparse
import json
import subprocess
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.first = nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))

    def forward(self, x):
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        if self.stride == 2:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))
        return F.relu(x + y)


def resnet20():
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    blocks = [Block(*pair) for pair in zip(widths, widths[1:])]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def cnn():
    pool = lambda inputs, outputs: [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(64 * 64, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*pool(3, 32), *pool(32, 64), *head)


def mlp():
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


class Gpt(nn.Module):
    def __init__(self, vocabulary=65, context=32, width=64, heads=4, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        make = lambda: nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.ModuleList(make() for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens) + self.positions
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x)).flatten(0, 1)


class Lstm(nn.Module):
    def __init__(self, vocabulary=10_000, width=100, layers=2, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens):
        outputs, _ = self.layers(self.drop(self.embedding(tokens)))
        return F.linear(self.drop(outputs), self.embedding.weight).flatten(0, 1)


def milliseconds(network, inputs, targets, steps):
    """The median of `steps` gradients, each copied into one flat tensor."""
    params = list(network.parameters())
    times = []
    for _ in range(steps + 2):
        started = time.perf_counter()
        network.zero_grad(set_to_none=True)
        F.cross_entropy(network(inputs), targets).backward()
        torch.cat([param.grad.flatten() for param in params])
        times.append((time.perf_counter() - started) * 1e3)
    return sorted(times[2:])[steps // 2]


def cases():
    images = lambda *shape: (torch.randn(*shape), torch.randint(10, (shape[0],)))
    tokens = lambda vocabulary, *shape: [torch.randint(vocabulary, shape) for _ in range(2)]
    yield "mlp", "32 images 1×28×28", mlp(), *images(32, 1, 28, 28), 100
    yield "cnn", "32 images 3×32×32", cnn(), *images(32, 3, 32, 32), 10
    yield "resnet20", "32 images 3×32×32", resnet20(), *images(32, 3, 32, 32), 5
    inputs, targets = tokens(65, 32, 32)
    yield "gpt", "32 windows of 32 letters", Gpt(), inputs, targets.flatten(), 20
    inputs, targets = tokens(10_000, 64, 35)
    yield "lstm", "64 streams, 35 of 10,000 words", Lstm(), inputs, targets.flatten(), 5


def rows_of(path):
    if path:
        return open(path, encoding="utf-8").read()
    command = ["cargo", "run", "--release", "-q", "-p", "gradwire-trainer", "--example", "step_times"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", help="what step_times printed, instead of running it")
    own = {row["model"]: row for row in map(json.loads, rows_of(parser.parse_args().rows).splitlines())}
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(f"| model | batch | parameters | trainer, ms | PyTorch {torch.__version__}, ms | ratio |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, shape, network, inputs, targets, steps in cases():
        params = sum(param.numel() for param in network.parameters())
        if params != own[name]["params"]:
            raise SystemExit(f"{name}: {own[name]['params']} parameters here, {params} in PyTorch")
        here, there = own[name]["ms"], milliseconds(network, inputs, targets, steps)
        print(f"| `{name}` | {shape} | {params:,} | {here:.2f} | {there:.2f} | {here / there:.2f} |", flush=True)


if __name__ == "__main__":
    main()
