"""Gradient compression: few bytes on the wire, nothing lost in silence.

A codec turns a gradient into a frame, one self-describing message; what it does not send is kept in a memory and added
to the next gradient.

>>> import numpy as np
>>> import gradwire
>>> codec = gradwire.Codec("topk:density=0.25")
>>> memory = gradwire.Memory(codec, 4)  # one for each worker, kept from step to step
>>> frame = codec.encode(np.array([0.5, -3, 0, 1], np.float32), memory=memory, step=0)
>>> total = np.zeros(4, np.float32)
>>> gradwire.add(frame, total)  # the frames of all workers, in the order of their ranks
>>> gradwire.divide(total, 1)
>>> total
array([ 0., -3.,  0.,  0.], dtype=float32)
"""

import sysconfig as _sysconfig

if _sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError("gradwire needs a Python with the GIL, and this one is free-threaded: use the ordinary interpreter")

from ._core import (
    CODECS,
    FORMAT_VERSIONS,
    SAVED_MEMORY_VERSIONS,
    VERSION,
    Codec,
    DecodeError,
    EncodeError,
    Exchange,
    ExchangeError,
    Frame,
    Layout,
    Limits,
    LinearRound,
    Listener,
    Memory,
    Mesh,
    UnitSource,
    add,
    decode,
    divide,
    inspect,
    register,
)

__version__ = VERSION

__all__ = [
    "CODECS",
    "FORMAT_VERSIONS",
    "SAVED_MEMORY_VERSIONS",
    "Codec",
    "DecodeError",
    "EncodeError",
    "Exchange",
    "ExchangeError",
    "Frame",
    "Layout",
    "Limits",
    "LinearRound",
    "Listener",
    "Memory",
    "Mesh",
    "UnitSource",
    "__version__",
    "add",
    "decode",
    "divide",
    "inspect",
    "register",
]
