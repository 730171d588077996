"""The first frame of somebody who has just installed the wheel: encoded, decoded, and nothing lost."""

import numpy as np

import gradwire

codec = gradwire.Codec("topk:density=0.01")
layout = gradwire.Layout({"fc.weight": (10, 64), "fc.bias": (10,)})
memory = gradwire.Memory(codec, layout)
grad = np.random.default_rng(0).normal(size=650).astype(np.float32)
frame = codec.encode(grad, memory=memory, step=0, rank=0)
total = np.zeros(650, np.float32)
gradwire.add(frame, total, layout=layout)
sent = np.flatnonzero(total)
assert len(sent) == 7, sent
assert np.array_equal(sent, np.sort(np.argsort(-abs(grad), kind="stable")[:7]))
assert np.array_equal(total + np.asarray(memory.residual), grad)
