"""The methods of docs/methods.md, and the runs that compare them."""

import re
from dataclasses import dataclass, field

WORKERS, BATCH = 4, 128

# A network of 25,450 parameters: small enough for every method at every rate and seed. The rate falls to 0 at the end, which
# makes seeds differ less than a constant one.
TASK = ("--data", "fashion-mnist", "--model", "mlp", "--hidden", 32, "--schedule", "cosine")
# The same without files.
QUICK_TASK = ("--data", "optdigits", "--model", "mlp", "--hidden", 16)
STEPS, QUICK_STEPS = 150, 4
# At equal bytes a method takes as many steps as its bytes allow, and no more than this.
MOST_STEPS = 300
# What the longer runs take, for a codec that learns during the run and what it is compared with.
LONG_STEPS = 4 * STEPS
# Steps that are one point of their curves.
WINDOW = 20
# A GPT of 110,464 parameters as people train it.
GPT_TASK = ("--data", "tiny-shakespeare", "--model", "gpt", "--batch", 32, "--schedule", "cosine", "--clip", 1, "--beta2", 0.95)

# What each method is asked to train.
PARTS = {"steps": "the MLP at equal steps", "bytes": "the MLP at equal bytes", "long": "the MLP for longer", "gpt": "the GPT with AdamW"}

# Three rates for each kind of step; where the best is at an end, the next one too, up to so many.
RATES = {"sgd": (0.3, 0.15, 0.6), "momentum": (0.03, 0.015, 0.06), "adamw": (0.003, 0.0015, 0.006)}
# AMSGrad's second moments have a floor, which makes most steps shorter than Adam's.
RATES["amsgrad"] = (0.006, 0.003, 0.012)
# A momentum that is a mean of gradients, and not a sum, steps as far at the rates of plain SGD.
RATES["averaged"] = RATES["sgd"]
RATES["gpt"] = (0.008, 0.004, 0.016)
FACTOR, MOST_RATES = 2, 4
# Rates are chosen with this seed, which is not one of those that are reported.
TUNING_SEED, SEEDS = 1, (11, 12, 13)

# What is encoded, by regime: gradients; those plus what error feedback kept; velocities of a DGC run.
GRADIENTS = {
    "raw": ("mlp-fmnist/s1-mid-step00400-w0", "resnet20-cifar10/s1-mid-step00150-w0", "lstm-ptb/s1-late-step00900-w0"),
    "residual": ("mlp-fmnist/s1-efv-step01500-w0", "resnet20-cifar10/s1-efv-step01000-w0", "gpt-shakespeare/s1-efv-step01000-w0"),
    "velocity": ("lenet5-mnist/s1-dgcv-step00800-w0", "resnet8-cifar10/s1-dgcv-step00200-w0", "gpt-shakespeare/s1-dgcv-step00080-w0"),
}
# This one is timed: 535,818 values, more than the second level of most caches holds.
TIMED = "mlp-fmnist/s1-efv-step01500-w0"


@dataclass(frozen=True)
class Method:
    """A codec, and what else `trainer train` is asked for."""

    codec: str
    options: tuple = ()
    # Where it is weak, and who described it.
    weak: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    # Whether the density is the codec's own.
    is_fixed: bool = True
    # Whether it is a row of the table of selections.
    selects: bool = field(default=False, compare=False)
    # Whether it is a row of the table of longer runs.
    lasts: bool = field(default=False, compare=False)

    @property
    def name(self):
        """Of its folders."""
        return re.sub("[^A-Za-z0-9.=+-]+", "-", self.spelling).strip("-")

    @property
    def spelling(self):
        """As the command line has it."""
        return " ".join([self.codec, *map(str, self.options)])

    @property
    def codec_name(self):
        """As in the registry."""
        return re.match("(x:)?[^:]*", self.codec)[0]

    @property
    def is_learned(self):
        """Whether it is trained during the run, so that one gradient alone says nothing of it."""
        return self.codec_name == "x:lgc"

    def codec_of(self, steps):
        """Phases that a codec counts in steps are those of a run of STEPS, and the same shares of any other."""
        return re.sub(r"(_steps=)(\d+)", lambda found: f"{found[1]}{int(found[2]) * steps // STEPS}", self.codec)

    def phases(self, steps):
        """The steps before a codec sends what it learned."""
        return sum(map(int, re.findall(r"_steps=(\d+)", self.codec_of(steps))))

    @property
    def keys(self):
        """Of the codec."""
        pairs = self.codec.removeprefix(self.codec_name)[1:].split(",")
        return dict(pair.partition("=")[::2] for pair in pairs if pair)

    def option(self, name, default=None):
        """The value of an option."""
        return self.options[self.options.index(name) + 1] if name in self.options else default

    @property
    def coordinates(self):
        """Whose are sent."""
        drawn = {"none": "each alone", "run": "as a run", "tile": "as a tile"}[self.keys.get("block", "none")]
        whose = {"topk": "own: the largest", "sharedk": "shared: the largest of one worker", "randomk": f"shared: drawn, {drawn}"}
        return whose[self.codec_name]

    @property
    def selected_over(self):
        """What density counts in."""
        if self.option("--rules"):
            return "layer"
        return self.keys.get("unit", "tensor" if self.keys.get("block") == "tile" else "model")

    @property
    def memory(self):
        """What becomes of what is not sent."""
        if "estimator" in self.keys:
            return "none: what is sent is scaled"
        return "none" if self.keys.get("memory") == "none" else "error feedback"

    @property
    def local_steps(self):
        """Batches between two exchanges."""
        return self.option("--local-steps", 1)

    @property
    def sends_steps(self):
        """Whether the mean is the step of an optimizer, so that it is no estimate of a gradient."""
        return "moments" in self.keys

    @property
    def kind_of_step(self):
        """Which rates it is tried with."""
        if "adamw" in self.option("--optimizer", ""):
            return "adamw"
        if self.sends_steps:
            return "amsgrad"
        if "feedback" in self.keys:
            return "averaged"
        has_own = self.codec_name == "dgc" or "momentum" in self.keys
        return "momentum" if has_own or "--momentum" in self.options else "sgd"

    def rates(self, part):
        """Those that are tried first."""
        return RATES["gpt" if part == "gpt" else self.kind_of_step]

    def trains(self, part):
        """AdamW goes with what sends gradients, or its updates. The rules are those of the MLP's layers."""
        if part != "gpt":
            return part != "long" or self.lasts
        # A row with this option is that of its codec.
        is_repeated = self.option("--optimizer") == "adamw"
        return not is_repeated and self.kind_of_step not in ("momentum", "amsgrad") and "--rules" not in self.options

    def dense(self):
        """What it is compared with: dense training with its optimizer, the momentum of DGC included."""
        momenta = dict.fromkeys(("momentum", "averaged"), DENSE_MOMENTUM)
        return {"sgd": DENSE, **momenta, "adamw": DENSE_ADAMW, "amsgrad": DENSE_ADAMW}[self.kind_of_step]


def by_layer(codec, **rest):
    """A group of tensors is a weight and its bias: the network has two layers."""
    return Method(codec, ("--rules", f"layers.0*={codec}; {codec}"), **rest)


def learned(*keys, dense_steps=5, train_steps=45, **rest):
    """With the phases of a run of STEPS."""
    return Method(",".join([f"x:lgc:dense_steps={dense_steps},train_steps={train_steps}", *keys]), lasts=True, **rest)


DENSE = Method("none", lasts=True, weak="the most bytes", source="")
DENSE_MOMENTUM = Method("none", ("--momentum", 0.9), weak="the most bytes", source="")
DENSE_ADAMW = Method("none", ("--optimizer", "adamw"), weak="the most bytes", source="")
# Its bytes are those of the comparison at equal bytes.
REFERENCE = Method(
    "topk:density=0.01",
    selects=True,
    lasts=True,
    weak="frames of all workers are gathered: bytes grow with the workers; not with AdamW",
    source="Aji, Heafield, arXiv 1704.05021; Stich et al., arXiv 1809.07599",
)

TOPK, QSGD, MAXNORM = REFERENCE.source, "Alistarh et al., arXiv 1610.02132", "Mao et al., arXiv 2109.12497"
TERNGRAD, DGC = "Wen et al., arXiv 1705.07878", "Lin et al., arXiv 1712.01887"
AMSGRAD = "Xian et al., arXiv 2210.07454"
FETCHSGD = "Rothchild et al., arXiv 2007.07682"
SCALECOM, EF21M = "Chen et al., NeurIPS 2020", "Fatkhullin et al., arXiv 2305.15155"
# Of EF21 with momentum.
ESTIMATE = "the mean lags behind the gradients; keeps three arrays; a momentum, of each worker"
EGHLIDI, RANDOMK = "Eghlidi, Jaggi, arXiv 2009.09271", "Stich et al., arXiv 1809.07599"
BLIND = "chooses without a look at the gradient"
NEIGHBOURS = f"{BLIND}; neighbours are sent together and wait together"
CHOCO = "Koloskova et al., arXiv 1902.00340"
LGC = "Abrahamyan et al., arXiv 2103.08870"
POWERSGD, POWERGOSSIP = "Vogels et al., arXiv 1905.13727", "Vogels et al., arXiv 2008.01425"
HERE = "of this project"

METHODS = [
    DENSE,
    DENSE_MOMENTUM,
    DENSE_ADAMW,
    Method("f16", weak="half the bytes and no fewer; magnitudes above 65,504 are refused", source="IEEE 754"),
    Method("bf16", weak="half the bytes and no fewer; 8 bits of precision", source="Kalamkar et al., arXiv 1905.12322"),
    Method("none", ("--exchange", "all-reduce", "--wire", "bf16"), weak="half the bytes and no fewer; each hop of the ring rounds", source=HERE),
    Method("topk:density=0.1", weak=REFERENCE.weak, source=TOPK),
    REFERENCE,
    Method("topk:density=0.001", weak="as with 0.01, and small gradients wait long", source=TOPK),
    Method("topk:density=0.01,values=q4", weak="as `topk`; fitting a codebook", source=f"{TOPK}; codebook {HERE}"),
    Method("topk:density=0.01,values=q2", lasts=True, weak="as `topk`; fitting a codebook", source="Sarfi et al., arXiv 2508.15706, for 2 bits"),
    Method("topk:density=0.01,values=sign", weak="one magnitude for a unit; values below half of it wait", source="Sarfi et al., arXiv 2508.15706, for values of few bits"),
    Method("topk:density=0.001,values=q4", weak="as with 0.001", source=f"{TOPK}; codebook {HERE}"),
    Method("topk:density=0.01,index=smallest,values=q4", weak="positions and values take longer to code", source=HERE),
    Method("topk:density=0.01,chunk=64,index=chunks", weak="not the largest of the whole, but of each chunk, and at least one of it: here 1.6 %", source="Sarfi et al., arXiv 2508.15706"),
    by_layer("topk:density=0.01", selects=True, weak="small layers send as large a share as large ones", source=EGHLIDI),
    Method("topk:density=0.01,unit=tensor", selects=True, weak="small layers send as large a share as large ones", source=TOPK),
    Method("topk:density=0.01,memory=none", selects=True, weak="what is not sent is lost", source=TOPK),
    Method("topk:density=0.01,unit=tensor,memory=none", selects=True, weak="what is not sent is lost", source=EGHLIDI),
    Method("topk:density=0.01,decay=0.95", weak="a part of what is not sent is lost", source="Sarfi et al., arXiv 2508.15706"),
    Method("threshold:value=0.01", weak="the value has to fit the scale of the gradients, and was not tuned here; the size of frames varies", source="Dutta et al., arXiv 1911.08250"),
    Method("dgc:density=0.01,warmup=0,dense_1d=false", weak="owns the momentum; keeps a second array; not with AdamW", source=DGC),
    Method("dgc:density=0.001,warmup=0,dense_1d=false", weak="as with 0.01; needs its warm-up, which is longer than these runs", source=DGC),
    Method("sidco:density=0.01", weak="the number sent varies; a pass for each stage", source="Abdelmoniem et al., MLSys 2021"),
    Method("redsync:density=0.01", weak="sends too few where tails are heavy", source="Fang et al., JPDC 133, 2019"),
    Method("randomk:density=0.1", selects=True, weak=BLIND, source=RANDOMK),
    by_layer("randomk:density=0.1", selects=True, weak=BLIND, source=EGHLIDI),
    Method("randomk:density=0.1,unit=tensor", selects=True, weak=BLIND, source=EGHLIDI),
    Method("randomk:density=0.1,memory=none", selects=True, weak=f"{BLIND}; what is not sent is lost", source=EGHLIDI),
    Method("randomk:density=0.1,estimator=unbiased", selects=True, weak="multiplies the noise by one over the density", source="Wangni et al., arXiv 1710.09854"),
    Method("randomk:density=0.1,block=run", selects=True, weak=NEIGHBOURS, source=EGHLIDI),
    by_layer("randomk:density=0.1,block=run", selects=True, weak=NEIGHBOURS, source=EGHLIDI),
    Method("randomk:density=0.1,block=run,unit=tensor", selects=True, weak=NEIGHBOURS, source=EGHLIDI),
    Method("randomk:density=0.1,block=run,memory=none", selects=True, weak=f"{NEIGHBOURS}; what is not sent is lost", source=EGHLIDI),
    Method("randomk:density=0.1,block=run,estimator=unbiased", selects=True, weak=f"{NEIGHBOURS}; multiplies the noise", source=EGHLIDI),
    Method("randomk:density=0.1,block=tile", selects=True, weak=NEIGHBOURS, source=f"near to code of others (GRSB); edges {HERE}"),
    Method("randomk:density=0.1,block=tile,estimator=unbiased", selects=True, weak=f"{NEIGHBOURS}; multiplies the noise", source=f"near to code of others (GRSB); edges {HERE}"),
    Method("randomk:density=0.01", selects=True, weak=BLIND, source=RANDOMK),
    Method("randomk:density=0.01,block=run", selects=True, weak=NEIGHBOURS, source=EGHLIDI),
    Method("sharedk:density=0.01,by=sketch", weak="16 floats for each value, so few workers do better with `topk`", source="near to arXiv 2510.26709 and 1903.04488"),
    Method("sharedk:density=0.01,by=sketch,rows=5", weak="48 floats for each value; hashing every coordinate five times", source="SketchedSGD without its momentum: Ivkin et al., arXiv 1903.04488"),
    Method("sharedk:density=0.01,by=leader", selects=True, lasts=True, weak="misses what only the sum shows; three rounds of messages", source=f"CLT-k, {SCALECOM}"),
    Method("sharedk:density=0.01,by=leader,unit=tensor", selects=True, weak="as over the model; small layers send as large a share as large ones", source=f"CLT-k, {SCALECOM}"),
    Method("sharedk:density=0.01,by=leader,memory=none", selects=True, weak="what is not sent is lost", source=f"CLT-k, {SCALECOM}"),
    Method("sharedk:density=0.01,by=leader,lowpass=0.1", weak="a tenth of a gradient that is not sent is kept", source=f"ScaleCom, {SCALECOM}"),
    Method("sharedk:density=0.01,by=leader,feedback=ef21,momentum=0.9", weak=ESTIMATE, source=f"{SCALECOM}; feedback of {EF21M}"),
    Method("sharedk:density=0.01,by=sketch,feedback=ef21,momentum=0.9", weak=ESTIMATE, source=f"near to arXiv 2510.26709; feedback of {EF21M}"),
    Method("sketch:density=0.01,cells=0.2,momentum=0.9", weak="collisions; a cell that is emptied forgets what else was in it; owns the momentum; not with AdamW", source=FETCHSGD),
    Method("sketch:density=0.01,cells=0.2,error=workers", weak="collisions: values are estimates", source="near to arXiv 1903.04488"),
    Method("sketch:density=0.01,cells=0.2,error=workers,decay=0.5", weak="as without the decay, and what waits is half forgotten in each step", source=HERE),
    Method("sketch:density=0.01,cells=0.2,moments=amsgrad", weak="collisions: values are estimates; four floats kept of each coordinate; owns the optimizer's step", source=AMSGRAD),
    Method("sketch:density=0.01,cells=0.2,moments=amsgrad,decay=0.5", weak="as without the decay, and what waits is half forgotten in each step", source=f"{AMSGRAD}; decay {HERE}"),
    Method("qsgd:bits=8", weak="gathered: bytes grow with the workers; coding levels takes time", source=QSGD),
    Method("qsgd:bits=4", weak="gathered: bytes grow with the workers; coding levels takes time", source=QSGD),
    Method("qsgd:bits=2", weak="much noise", source=QSGD),
    Method("qsgd:bits=2,rounding=nearest", weak="biased, so it keeps a residual", source=f"{QSGD}; rounding {HERE}"),
    Method("qsgd:bits=4,norm=l2,entropy=elias", weak="the code of the paper is longer than `auto`", source=QSGD),
    Method("qsgd:bits=ternary,bucket=4294967295,sigmas=2.5,unit=tensor", weak="much noise; keeps no residual", source=TERNGRAD),
    Method("efsign", weak="all magnitudes of a unit are one; no fewer bits than one", source="Karimireddy et al., arXiv 1901.09847"),
    Method("maxnorm:bits=8", weak="fields grow with the workers; one norm for all", source=MAXNORM),
    Method("maxnorm:bits=4", weak="fields grow with the workers; one norm for all: much noise", source=MAXNORM),
    Method("maxnorm:bits=5", weak="as with 4 bits, and less noise", source=MAXNORM),
    Method("maxnorm:bits=2", weak="as with 4 bits, and more noise", source=MAXNORM),
    Method("maxnorm:bits=4,rounding=nearest", weak="one norm for all: most coordinates wait until they are large", source=f"{MAXNORM}; rounding {HERE}"),
    Method("maxnorm:bits=4+8", weak="a third round, of a bit a coordinate", source=MAXNORM),
    Method("maxnorm:bits=4,density=0.1", weak="a coordinate is sent every tenth step", source=MAXNORM),
    Method("maxnorm:bits=2,sigmas=2.5,unit=tensor", weak="much noise; keeps no residual", source=TERNGRAD),
    Method("powersgd:rank=1", weak="matrices only; vectors go whole", source=POWERSGD),
    Method("powersgd:rank=4", weak="matrices only; vectors go whole", source=POWERSGD),
    learned(weak="dense steps are most of a short run's bytes, and positions most of a later step's; training the autoencoder takes a hundred times as long as the gradients of this network", source=LGC),
    learned(dense_steps=0, train_steps=50, weak="as with dense steps, but for their bytes", source=f"{LGC}; no dense steps: {HERE}"),
    learned("order=index", weak="as in the order of values, but neighbours are as good as unrelated: there is nothing to learn, and the gate stays shut", source=LGC),
    learned("decoders=4", weak="decoded values lack most of their energy, so the gate stays shut; more to train for each decoder", source=LGC),
    learned("decoders=4,gate=0.95", weak="as with the gate of 0.5, but what is decoded says little, and the rest waits", source=LGC),
    Method("dpsgd", weak="replicas differ; the bytes of `none`", source="Lian et al., arXiv 1705.09056"),
    Method("powergossip:rank=1", weak="replicas differ; matrices only", source=POWERGOSSIP),
    Method("powergossip:rank=1,iterations=4", weak="replicas differ; more messages in a step", source=POWERGOSSIP),
    Method("choco:density=0.1,diffusion=0.1", weak="replicas differ; two models of memory for each edge; a rate to tune", source=CHOCO),
    Method("choco:density=1,values=sign,diffusion=0.45,dense_1d", weak="as with top-k", source=CHOCO),
    Method("none", ("--local-steps", 4), weak="replicas part between exchanges", source="McMahan et al., arXiv 1602.05629"),
    Method("topk:density=0.04", ("--local-steps", 4), weak="as local steps and `topk`", source="Sarfi et al., arXiv 2508.15706"),
    Method("none", ("--delayed",), weak="each mean is one step old", source=HERE),
    Method("topk:density=0.01", ("--exchange", "sparse"), weak="more messages than one gather", source="Renggli et al., arXiv 1802.08021; Li, Hoefler, arXiv 2201.07598"),
    Method("topk", ("--adapt", "gravac:min=10,max=1000,eps=0.7,window=50,clock=none"), weak="two more passes; `eps` has to fit", source="Tyagi, Swany, arXiv 2305.12201", is_fixed=False),
    Method("topk:density=0.01", ("--optimizer", "adamw"), weak="the second moment sees spikes", source=TOPK),
    Method("topk:density=0.01", ("--optimizer", "adamw-updates"), weak="two moments of each worker's own", source="near to Sarfi et al., arXiv 2508.15706"),
]


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: Method
    part: str
    rate: float
    seed: int

    @property
    def name(self):
        """Of its folder."""
        return f"{self.method.name}-{self.part}-lr{self.rate:g}-s{self.seed}"
