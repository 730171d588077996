"""What torch_lab.py compares: models, methods and links, written down before anything is timed.

Imports nothing of torch, so that torch_report.py needs none.
"""

from dataclasses import dataclass

# Mbit/s in both directions of each host; none is a link without limit.
LINKS = {"100 Mbit/s": 100, "1000 Mbit/s": 1000, "no limit": None}
# The link at which the hook is compared with an older one and with encryption, and for which there are targets.
SLOW = "100 Mbit/s"
# Hosts have one core, of which this machine has two: two ranks with a core each, or four that share two.
RANKS = [2, 4]
ROUNDS = 3


@dataclass(frozen=True)
class Model:
    name: str
    params: int
    # Examples of one rank in one step.
    batch: int
    # How accuracy is found: SGD without momentum, the rate falling linearly to zero.
    lr: float
    steps: int
    measure: str
    # Whether more of the measure is better, and by how much it may be worse than dense gradients and count as equal.
    rises: bool
    tolerance: float


MODELS = {
    "lstm": Model("LSTM, PTB", 4_653_200, 20, 2.0, 4000, "validation loss", False, 0.01),
    "gpt": Model("GPT, tiny Shakespeare", 3_075_072, 1, 0.2, 2000, "validation loss", False, 0.01),
    "resnet": Model("ResNet-20, CIFAR-10", 269_722, 4, 0.1, 5000, "test accuracy", True, 0.01),
}


@dataclass(frozen=True)
class Method:
    # How torch_hooks.py makes it, and of what.
    kind: str
    argument: str = ""
    # The method that this is with DDP's gradient_as_bucket_view, which spares every hook two copies of all gradients, and
    # changes nothing of what is learned.
    views_of: str = ""
    # How its floats travel where ranks sum them.
    wire: str = "f32"

    @property
    def is_ours(self):
        return self.kind == "gradwire"

    @property
    def warm_up_steps(self):
        """Steps before those that are timed. The hook looks at ten, then times an all-reduce for its advice, unless it sends
        dense gradients itself."""
        return WARM_UP_STEPS_OF_OURS if self.is_ours and self.argument != "none" else WARM_UP_STEPS

    @property
    def bucket_cap_mb(self):
        """DDP's default, which is two buckets here; over gloo PyTorch's PowerSGD hook hangs with them, and has one."""
        return 25 if self.kind == "powersgd" else None

    @property
    def learns(self):
        """Whether it is trained: its gradients are means of all ranks, and no other method's."""
        return self.kind != "nothing" and not self.views_of

    @property
    def is_in_old(self):
        """Whether the older hook has it."""
        return self.is_ours and self.wire == "f32" and self.argument != "auto"


NOTHING, DENSE = "no-op hook", "all-reduce"
NOTHING_WITH_VIEWS = "no-op hook (views)"
METHODS = {
    NOTHING: Method("nothing"),
    DENSE: Method("all-reduce"),
    "fp16": Method("fp16"),
    "bf16": Method("bf16"),
    "PowerSGD rank 1": Method("powersgd", "1"),
    "PowerSGD rank 2": Method("powersgd", "2"),
    "PowerSGD rank 4": Method("powersgd", "4"),
    "top-k 1 % as GRACE": Method("grace", "0.01"),
    "gradwire none": Method("gradwire", "none"),
    "gradwire none (bf16 on the wire)": Method("gradwire", "none", wire="bf16"),
    "gradwire bf16": Method("gradwire", "bf16"),
    "gradwire top-k 10 %": Method("gradwire", "topk:density=0.1"),
    "gradwire top-k 1 %": Method("gradwire", "topk:density=0.01"),
    "gradwire top-k 1 % q4": Method("gradwire", "topk:density=0.01,values=q4,index=small"),
    "gradwire top-k 0.1 %": Method("gradwire", "topk:density=0.001"),
    "gradwire top-k 0.1 % q4": Method("gradwire", "topk:density=0.001,values=q4"),
    "gradwire qsgd 4 bits": Method("gradwire", "qsgd:bits=4"),
    "gradwire auto": Method("gradwire", "auto"),
    "gradwire powersgd 2": Method("gradwire", "powersgd:rank=2"),
    NOTHING_WITH_VIEWS: Method("nothing", views_of=NOTHING),
    "PowerSGD rank 1 (views)": Method("powersgd", "1", views_of="PowerSGD rank 1"),
    "gradwire top-k 1 % (views)": Method("gradwire", "topk:density=0.01", views_of="gradwire top-k 1 %"),
    "gradwire top-k 0.1 % (views)": Method("gradwire", "topk:density=0.001", views_of="gradwire top-k 0.1 %"),
    "gradwire top-k 0.1 % q4 (views)": Method("gradwire", "topk:density=0.001,values=q4", views_of="gradwire top-k 0.1 % q4"),
}
# Of which the hook chooses with `auto` and SGD, as every model here is trained.
AUTO = "gradwire auto"
CHOICES = [
    "gradwire none",
    "gradwire none (bf16 on the wire)",
    "gradwire top-k 10 %",
    "gradwire top-k 1 %",
    "gradwire top-k 1 % q4",
    "gradwire top-k 0.1 %",
    "gradwire top-k 0.1 % q4",
]
# Methods of PyTorch that are timed in turns with one of ours, which has a target against them.
RIVALS = {"gradwire none": DENSE, "gradwire none (bf16 on the wire)": "bf16"}
# How a method of ours is timed: as it is, by the hook of --old, and encrypted, which no method of PyTorch's is.
PLAIN, OLD, ENCRYPTED = "plain", "old", "encrypted"
# Encrypted with so many ranks alone, which have a core each, to end within two hours.
ENCRYPTED_RANKS = 2


def parties(method, ranks, link, has_old, chosen):
    """What is timed in turns with a method, which comes first: pairs of a method and how it is timed.

    A rival is timed with the method that it is compared with, and nowhere else, unless that one is not among the chosen.
    """
    if any(rival == method and ours in chosen for ours, rival in RIVALS.items()):
        return []
    found = [(method, PLAIN)]
    if RIVALS.get(method) in chosen:
        found.append((RIVALS[method], PLAIN))
    if link == SLOW and METHODS[method].is_ours and not METHODS[method].views_of:
        found += [(method, OLD)] if has_old and METHODS[method].is_in_old else []
        found += [(method, ENCRYPTED)] if ranks == ENCRYPTED_RANKS else []
    return found


# What --quick times: two ranks at 100 Mbit/s, and over no more than these.
QUICK_METHODS = [NOTHING, DENSE, "PowerSGD rank 1", "gradwire bf16", "gradwire top-k 1 %", "gradwire top-k 1 % q4"]

# Seconds for which the steps of a party are timed, and how many steps these are at least and at most.
TIMED_SECONDS, FEWEST_STEPS, MOST_STEPS = 0.8, 3, 40
# Parties take this many turns, or one for each step where there are fewer. A turn of many steps begins with one that is not
# timed: a connection that was idle begins slowly.
TURNS, MANY_STEPS = 5, 4
# Steps before that: PyTorch's PowerSGD sends its first two dense, and buckets are rebuilt behind the first.
WARM_UP_STEPS, WARM_UP_STEPS_OF_OURS = 4, 12
# Steps of compute alone, before the steps of a cell and again behind them.
COMPUTE_STEPS = 10
# Seconds for one answer; the longest are those of steps of a dense LSTM at 100 Mbit/s, and trainings.
PATIENCE = {"begin": 180, "compute": 60, "steps": 180, "end": 180, "train": 3600}
# Cores that other programs may use while a cell is timed. With more it is timed again by the next start.
MOST_OTHERS = 0.1

# Of what the hook chooses, over the fastest that it may choose.
MOST_OF_BEST = 1.1
