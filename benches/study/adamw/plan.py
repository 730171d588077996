"""Tasks, methods and seeds of adamw.py."""

import gzip
import os
import sysconfig
from pathlib import Path

import torch
from methods import Method
from model import Shape
from train import Task

#: Factors of 2 over 64 times; where the best is at an end, the next one is tried too.
RATES = [1e-3, 2e-3, 5e-4, 4e-3, 2.5e-4, 8e-3, 1.6e-2]
TUNING_SEED, SEEDS = 0, tuple(range(11, 19))

CHARACTERS = Shape(words=65, width=256, layers=4, heads=4, context=128)
WORDS = Shape(words=10_000, width=192, layers=4, heads=4, context=64)
LARGE = Shape(words=10_000, width=512, layers=8, heads=8, context=64)
SMALL = Shape(words=65, width=64, layers=2, heads=4, context=32)
SMALL_ASCII = Shape(words=128, width=64, layers=2, heads=4, context=32)
SMALL_WORDS = Shape(words=10_000, width=64, layers=2, heads=4, context=32)
TINY = Shape(words=65, width=16, layers=1, heads=2, context=16)
TASKS = {
    "shakespeare": Task("shakespeare", CHARACTERS, batches=1500, windows=8),
    "ptb": Task("ptb", WORDS, batches=1500, windows=8),
    "ptb-0.999": Task("ptb", WORDS, batches=1500, windows=8, beta2=0.999),
    "shakespeare-0.999": Task("shakespeare", CHARACTERS, batches=1500, windows=8, beta2=0.999),
    # The model of the first task, trained further on another text.
    "fine-tuning": Task("wikitext", CHARACTERS, batches=300, windows=8, begins_from=("shakespeare", 1e-3)),
    # For two cores: a little more than one pass over the text. Then the same with other moments of AdamW.
    "small": Task("shakespeare", SMALL, batches=600, windows=16),
    "small-0.999": Task("shakespeare", SMALL, batches=600, windows=16, beta2=0.999),
    "small-0.8": Task("shakespeare", SMALL, batches=600, windows=16, beta1=0.8),
    # Another text, from nothing.
    "small-wikitext": Task("wikitext", SMALL, batches=600, windows=16),
    "small-code": Task("code", SMALL_ASCII, batches=600, windows=16),
    "small-fine-tuning": Task("wikitext", SMALL, batches=200, windows=16, begins_from=("small", 1.6e-2)),
    "small-lora": Task("wikitext", SMALL, batches=200, windows=16, begins_from=("small", 1.6e-2), adapters=4),
    # The same by words: a little more than one pass over the text.
    "small-ptb": Task("ptb", SMALL_WORDS, batches=600, windows=16),
    "small-ptb-0.999": Task("ptb", SMALL_WORDS, batches=600, windows=16, beta2=0.999),
    # One pass over the text.
    "ptb-30M": Task("ptb", LARGE, batches=450, windows=8),
    # To see that all of it works.
    "quick": Task("random", TINY, batches=40, windows=2),
    "quick-further": Task("random", TINY, batches=40, windows=2, begins_from=("quick", 1e-3)),
    "quick-lora": Task("random", TINY, batches=40, windows=2, begins_from=("quick", 1e-3), adapters=2),
}

# The first is what all others are compared with.
METHODS = {
    "dense": Method("gradients", "none"),
    "local8-qsgd": Method("local", "qsgd:bits=4", 8),
    "local16-qsgd": Method("local", "qsgd:bits=4", 16),
    "local16-nesterov-qsgd": Method("local", "qsgd:bits=4", 16, (0.7, 0.9)),
    "local30-nesterov-qsgd": Method("local", "qsgd:bits=4", 30, (0.7, 0.9)),
    "local4-topk-18%": Method("local", "topk:density=0.18,values=q4", 4),
    "local8-topk-18%": Method("local", "topk:density=0.18,values=q4", 8),
    "local2-topk-7%": Method("local", "topk:density=0.07,values=q4", 2),
    "local4-topk-7%": Method("local", "topk:density=0.07,values=q4", 4),
    "local2-topk-3.2%": Method("local", "topk:density=0.032,values=q4", 2),
    # As many of each tensor.
    "local4-topk-7%-tensor": Method("local", "topk:density=0.07,values=q4,unit=tensor", 4),
    "local4-efsign": Method("local", "efsign", 4),
    "local8-efsign": Method("local", "efsign", 8),
    "local1-efsign-momentum": Method("local", "efsign", moments="remade"),
    "local2-efsign-momentum": Method("local", "efsign", 2, moments="remade"),
    "local4-efsign-momentum": Method("local", "efsign", 4, moments="remade"),
    "local2-efsign-momentum-server": Method("local", "efsign", 2, moments="remade", by_server=True),
    "local30-streaming": Method("local", "qsgd:bits=4", 30, (0.7, 0.9), fragments=3),
    "local30-sparseloco": Method("local", "topk:density=0.0156,chunk=4096,values=q2,decay=0.95", 30),
    "updates-topk-3.2%": Method("updates", "topk:density=0.032,values=q4"),
    "updates-topk-1.35%": Method("updates", "topk:density=0.0135,values=q4"),
    "shared-topk-3.2%": Method("updates", "topk:density=0.032,values=q4", shared=10),
    "shared-topk-1.35%": Method("updates", "topk:density=0.0135,values=q4", shared=10),
    "gradients-qsgd": Method("gradients", "qsgd:bits=4"),
    "gradients-topk-10%": Method("gradients", "topk:density=0.1,values=q4"),
    "gradients-topk-1%": Method("gradients", "topk:density=0.01,values=q4"),
    "gradients-powersgd": Method("gradients", "powersgd:rank=4"),
    # Local steps without compression: the dense forms of the methods above.
    "local1": Method("local", "none"),
    "local2": Method("local", "none", 2),
    "local4": Method("local", "none", 4),
    "local4-first": Method("local", "none", 4, moments="first"),
    "local4-second": Method("local", "none", 4, moments="second"),
    "local8": Method("local", "none", 8),
    "local16": Method("local", "none", 16),
    "local16-nesterov": Method("local", "none", 16, (0.7, 0.9)),
    "local30-nesterov": Method("local", "none", 30, (0.7, 0.9)),
    # Other optimizers than AdamW, first in their dense forms.
    "muon": Method("gradients", "none", optimizer="muon"),
    "muon-gradients-qsgd": Method("gradients", "qsgd:bits=4", optimizer="muon"),
    "muon-gradients-topk-10%": Method("gradients", "topk:density=0.1,values=q4", optimizer="muon"),
    "muon-gradients-powersgd": Method("gradients", "powersgd:rank=4", optimizer="muon"),
    "muon-local4": Method("local", "none", 4, optimizer="muon"),
    "muon-local8": Method("local", "none", 8, optimizer="muon"),
    "muon-local4-topk-18%": Method("local", "topk:density=0.18,values=q4", 4, optimizer="muon"),
    "muon-local4-topk-7%": Method("local", "topk:density=0.07,values=q4", 4, optimizer="muon"),
    "muon-local4-topk-7%-tensor": Method("local", "topk:density=0.07,values=q4,unit=tensor", 4, optimizer="muon"),
    "muon-local2-topk-7%-tensor": Method("local", "topk:density=0.07,values=q4,unit=tensor", 2, optimizer="muon"),
    "muon-local8-topk-18%": Method("local", "topk:density=0.18,values=q4", 8, optimizer="muon"),
    "muon-local8-efsign": Method("local", "efsign", 8, optimizer="muon"),
    "signum": Method("gradients", "none", optimizer="signum"),
    # What others published.
    "signum-votes": Method("votes", "efsign"),
    "demo-3%": Method("demo", "topk:density=0.03,chunk=4096,values=q4,decay=0.999"),
    "demo-0.78%": Method("demo", "topk:density=0.0078,chunk=4096,values=q4,decay=0.999"),
    "ef21-sgdm-topk-3.2%": Method("estimates", "topk:density=0.032,values=q4"),
    "1-bit-adam": Method("1-bit-adam", "efsign"),
    "0-1-adam": Method("0/1-adam", "efsign"),
    "comp-ams-topk-10%": Method("gradients", "topk:density=0.1,values=q4", optimizer="amsgrad"),
    "comp-ams-topk-1%": Method("gradients", "topk:density=0.01,values=q4", optimizer="amsgrad"),
    "ldadam-4": Method("projected", "powersgd:rank=4"),
}


def text(name):
    """The parts that train and validate, as tokens."""
    if name == "random":
        random = torch.Generator().manual_seed(0)
        return torch.randint(TINY.words, (400,), generator=random), torch.randint(TINY.words, (100,), generator=random)
    given = Path(os.environ["GRADWIRE_DATA"])
    folder = given / "data" if (given / "data").is_dir() else given
    if name == "ptb":
        train = gzip.decompress((folder / "ptb/ptb.train.txt.gz").read_bytes()).decode().replace("\n", " <eos> ").split()
        valid = (folder / "ptb/ptb.valid.txt").read_text().replace("\n", " <eos> ").split()
        number = {word: at for at, word in enumerate(sorted(set(train)))}
        return tuple(torch.tensor([number[word] for word in part]) for part in (train, valid))
    if name == "code":
        # The modules of Python itself, of the version that runs this.
        modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        letters = "".join(module.read_text("utf-8", errors="ignore") for module in modules)[:1_500_000]
        return cut_in_two(torch.tensor(list(letters.encode("ascii", "replace"))))
    shakespeare = (folder / "tiny-shakespeare/input.txt").read_text()
    number = {letter: at for at, letter in enumerate(sorted(set(shakespeare)))}
    found = shakespeare
    if name == "wikitext":
        # In the letters that the model knows.
        parts = [(folder / f"wikitext-2/{part}.txt").read_text() for part in ("test", "valid")]
        found = "".join(letter for letter in "".join(parts) if letter in number)
    return cut_in_two(torch.tensor([number[letter] for letter in found]))


def cut_in_two(tokens):
    """The last tenth validates."""
    cut = len(tokens) * 9 // 10
    return tokens[:cut], tokens[cut:]

