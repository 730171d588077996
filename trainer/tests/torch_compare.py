#!/usr/bin/env python3
"""Compares losses and gradients of the default models with PyTorch.

Not part of the checks: it runs only where PyTorch is installed, and says so where it is not. It builds and runs the
example `dump_gradient`, computes the same loss in PyTorch from the same parameters and batch, and compares the gradients
of every tensor: the L2 norm of the difference, relative to that of the gradient, must be below 1e-5.

usage: python3 trainer/tests/torch_compare.py
"""

import array
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("SKIPPED torch_compare: PyTorch is not installed")
    sys.exit(0)

TOLERANCE = 1e-5
# Sizes that the layout does not tell.
HEADS = 4
IMAGE = (1, 8, 8)


def read(path, code):
    values = array.array(code)
    values.frombytes(path.read_bytes())
    if sys.byteorder == "big":
        values.byteswap()
    return torch.tensor(values.tolist(), dtype=torch.float32 if code == "f" else torch.int64)


def tensors(flat, layout):
    sizes = [int(torch.tensor(shape).prod()) for _, shape in layout]
    return {name: part.reshape(shape).clone() for (name, shape), part in zip(layout, flat.split(sizes))}


def linear(p, name, x):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def mlp(p, folder):
    x = read(folder / "features.f32", "f").reshape(-1, IMAGE[0] * IMAGE[1] * IMAGE[2])
    n = 0
    while f"layers.{n}.weight" in p:
        x = linear(p, f"layers.{n}", x if n == 0 else F.relu(x))
        n += 1
    return x


def cnn(p, folder):
    x = read(folder / "features.f32", "f").reshape(-1, *IMAGE)
    for name in ("conv1", "conv2"):
        x = F.max_pool2d(F.relu(F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], padding=1)), 2)
    return linear(p, "output", F.relu(linear(p, "hidden", x.flatten(1))))


def norm(p, name, x):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.gain"], p[f"{name}.shift"], 1e-5)


def attend(p, name, x):
    windows, tokens, width = x.shape
    split = lambda part: part.reshape(windows, tokens, HEADS, width // HEADS).transpose(1, 2)
    query, key, value = map(split, linear(p, f"{name}.qkv", x).chunk(3, dim=-1))
    scores = query @ key.transpose(-1, -2) / (width // HEADS) ** 0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(future, float("-inf")).softmax(-1)
    return linear(p, f"{name}.out", (shares @ value).transpose(1, 2).reshape(windows, tokens, width))


def gpt(p, folder):
    tokens = p["positions"].shape[0]
    x = p["embedding"][read(folder / "inputs.u32", "I").reshape(-1, tokens)] + p["positions"]
    n = 0
    while f"blocks.{n}.norm1.gain" in p:
        block = f"blocks.{n}"
        x = x + attend(p, f"{block}.attention", norm(p, f"{block}.norm1", x))
        x = x + linear(p, f"{block}.mlp.down", F.gelu(linear(p, f"{block}.mlp.up", norm(p, f"{block}.norm2", x))))
        n += 1
    return (norm(p, "norm", x) @ p["head"]).flatten(0, 1)


def compare(name, forward, folder):
    command = ["cargo", "run", "--release", "--quiet", "--example", "dump_gradient", "--", name, str(folder)]
    subprocess.run(command, check=True, cwd=pathlib.Path(__file__).resolve().parent.parent)
    first, *rows = [line.split() for line in (folder / "layout.txt").read_text().splitlines()]
    layout = [(row[0], [int(side) for side in row[1:]]) for row in rows]
    params = tensors(read(folder / "params.f32", "f"), layout)
    ours = tensors(read(folder / "grad.f32", "f"), layout)
    for param in params.values():
        param.requires_grad_()
    loss = F.cross_entropy(forward(params, folder), read(folder / "targets.u32", "I"))
    loss.backward()
    worst, where = 0.0, ""
    for tensor, param in params.items():
        error = float((param.grad - ours[tensor]).norm() / param.grad.norm().clamp(min=1e-6))
        worst, where = max((worst, where), (error, tensor))
    good = worst < TOLERANCE and abs(float(loss.detach()) - float(first[1])) < 1e-5
    print(f"{name}: loss {float(first[1]):.6f}, torch {float(loss):.6f}; gradient differs by {worst:.1e} ({where})"
          f" {'ok' if good else 'FAILED'}")
    return good


def main():
    with tempfile.TemporaryDirectory() as folder:
        models = {"mlp": mlp, "cnn": cnn, "gpt": gpt}
        results = [compare(name, forward, pathlib.Path(folder) / name) for name, forward in models.items()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
