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
    "tree": "tree",
    "all-gather": "all-gather",
    "sparse": "sparse",
}

# Mbit/s of each host's link.
RATES = [30, 100, 1000]
WORKERS = [2, 4]
ROUNDS = 3

# Combinations like these were looked at while the model was made (with a smaller `mlp`): its formulas are those of the literature
# and of the exchanges, and nothing in it was fitted. All others were measured for the first time after it was frozen.
SEEN = {("mlp", rate, workers) for rate in RATES for workers in WORKERS}
