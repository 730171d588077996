"""Bits of a coordinate that each of methods_cells.py sends, by formula."""

import math

from methods_cells import STEPS, WORKERS


def entropy(share):
    """Bits that say of a coordinate whether it is one of a share of all, if chance chose them."""
    if not 0 < share < 1:
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


VALUE_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8": 8, "q4": 4, "q2": 2, "sign": 1}


def sparse(method, shapes):
    """Where no density is given, none is known beforehand. Of a chunk, at least one is sent."""
    value, density = VALUE_BITS[method.keys.get("values", "f32")], float(method.keys.get("density", 0))
    if chunk := int(method.keys.get("chunk", 0)):
        density = max(1, round(density * chunk)) / chunk
    return f"{value}ρ + H(ρ)", value * density + entropy(density) if density else None


def levels(method, shapes):
    """Of fixed width; a bucket has a norm."""
    bits, bucket = method.keys.get("bits", "4"), int(method.keys.get("bucket", 512))
    width, shown = (math.log2(3), "log₂3") if bits == "ternary" else (int(bits), bits)
    return f"{shown} + 32/bucket", width + 32 / min(bucket, coordinates(shapes))


def summed_levels(method, shapes):
    """Whole fields in words of 31 bits, wide enough for the sum of all workers."""
    bits, _, fine = method.keys.get("bits", "4").partition("+")
    levels_of_a_sign = 2 ** (int(bits) - 1) - 1
    width = (2 * WORKERS * levels_of_a_sign).bit_length()
    density, mask = float(method.keys.get("density", 1)), 1 if fine else 0
    words = 32 / (31 // width)
    shown = "32/⌊31/w⌋" + (" + 1" if fine else "") + (" · ρ" if density < 1 else "")
    return f"{shown}, w = {width}", (words + mask) * density


def low_rank(method, shapes):
    """Two factors of each matrix."""
    rank = int(method.keys.get("rank", 1))
    floats = sum(factors(shape, rank) if len(shape) > 1 else size(shape) for shape in shapes)
    return "32(r·Σ(a + b) + vectors)/n", 32 * floats / coordinates(shapes)


def gossip_low_rank(method, shapes):
    """One factor a round, of each edge."""
    rank, rounds = int(method.keys.get("rank", 1)), int(method.keys.get("iterations", 1))
    floats = sum(rounds * factors(shape, rank) / 2 if len(shape) > 1 else size(shape) for shape in shapes)
    return "32(r·i·Σ(a + b)/2 + vectors)/n", 32 * floats / coordinates(shapes)


def believed(method, shapes):
    """A position and a value, or 24 signs in a float, of each edge; with `dense_1d` vectors whole."""
    density, vectors = float(method.keys["density"]), sum(size(shape) for shape in shapes if len(shape) < 2)
    if method.keys.get("values") != "sign":
        return "64ρ", 64 * density
    n = coordinates(shapes)
    return "32(matrices/24 + vectors)/n", 32 * ((n - vectors) / 24 + vectors) / n


def shared(method, shapes):
    """8 columns of each row of a sketch and 8 candidates for each value, or a position and a value."""
    density, rows = float(method.keys["density"]), int(method.keys.get("rows", 1))
    words = {"sketch": 8 * rows + 8, "leader": 2}[method.keys["by"]]
    return f"{words}·32ρ", words * 32 * density


def latents(method, shapes):
    """Positions, which three quarters of a ring's hops carry, and values of all workers, gathered; then a latent for values, if
    no gate is shut. With decoders the leader's latent goes with its positions."""
    apart = "decoders" in method.keys
    dense, train = (int(method.keys[f"{phase}_steps"]) / STEPS for phase in ("dense", "train"))
    density, trains, later = float(method.keys.get("top", 0.01)), 93 if apart else 88, 31
    words = f"32d + {trains}ρt + {later}ρ(1 − d − t)"
    return words, 32 * dense + density * (trains * train + later * (1 - dense - train))


def sketched(method, shapes):
    """Cells of floats."""
    return "32·cells", 32 * float(method.keys["cells"])


def constant(bits):
    """The same for every gradient."""
    return lambda method, shapes: (str(bits), float(bits))


def size(shape):
    """Of one tensor."""
    return math.prod(shape)


def coordinates(shapes):
    """Of all tensors."""
    return sum(map(size, shapes))


def factors(shape, rank):
    """Floats of both factors of a tensor as a matrix; those of the whole where these are not half of it."""
    rows, columns = shape[0], size(shape) // shape[0]
    both = min(rank, rows, columns) * (rows + columns)
    return both if 2 * both <= rows * columns else rows * columns


FORMULAS = {
    "none": constant(32),
    "f16": constant(16),
    "bf16": constant(16),
    "topk": sparse,
    "threshold": sparse,
    "dgc": sparse,
    "sidco": sparse,
    "redsync": sparse,
    "randomk": lambda method, shapes: ("32ρ", 32 * float(method.keys["density"])),
    "qsgd": levels,
    "efsign": constant(1),
    "maxnorm": summed_levels,
    "powersgd": low_rank,
    "sharedk": shared,
    "sketch": sketched,
    "x:lgc": latents,
    "dpsgd": constant(32),
    "powergossip": gossip_low_rank,
    "choco": believed,
}


def formula(method, shapes):
    """In words and as a number: bits of a coordinate and batch that a worker contributes. A number of None: not known beforehand."""
    if method.option("--wire") == "bf16":
        return "16", 16.0
    if not method.is_fixed:
        return "as the density", None
    words, bits = FORMULAS[method.codec_name](method, shapes)
    steps = method.local_steps
    return (f"({words})/{steps}", bits / steps) if steps > 1 else (words, bits)
