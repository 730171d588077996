"""What advice_check.py compares."""

# A model with its settings, and examples a step of each worker.
MODELS = {
    "mlp": (["--data", "optdigits", "--model", "mlp", "--hidden", "768,384"], 256),
    "gpt": (["--data", "tiny-shakespeare", "--model", "gpt"], 4),
}

# What is asked for by `trainer advise`, and how `trainer train` is told; the exchange is the one that was advised.
METHODS = {
    "none": ["--codec", "none"],
    "none, wire=bf16": ["--codec", "none", "--wire", "bf16"],
    "topk:density=0.01": ["--codec", "topk:density=0.01"],
    "topk:density=0.001,values=q4": ["--codec", "topk:density=0.001,values=q4"],
    "qsgd:bits=4": ["--codec", "qsgd:bits=4"],
    "efsign": ["--codec", "efsign"],
    "randomk:density=0.01": ["--codec", "randomk:density=0.01"],
    "powersgd:rank=2": ["--codec", "powersgd:rank=2"],
}

# What `trainer advise` calls an exchange, and what `trainer train` does.
EXCHANGES = {
    "ring": "all-reduce",
    "ring-bf16": "all-reduce",
    "owners": "owners",
    "owners-bf16": "owners",
    "all-gather": "all-gather",
    "sparse": "sparse",
}

ROUNDS = 2


def places(rates, workers):
    """Models, Mbit/s of each host's link, and numbers of workers."""
    return [(model, rate, count) for model in MODELS for rate in rates for count in workers]


# All methods were looked at in these places while the model, and how its inputs are measured, was made. Nothing in it was
# fitted: its formulas are those of the literature and of the exchanges. The others were measured for the first time after it
# was frozen.
SEEN = [*places([30, 100, 1000], [2, 4]), *places([20], [2, 3])]
AFTERWARDS = places([25, 50, 150, 400], [2, 3])
