"""Pictures of the methods: error against bits, accuracy against bytes, and loss against bytes as training goes on. Of the first
two, lines join what no other method beats in both."""

import statistics
from itertools import accumulate

from methods_cells import METHODS, WINDOW, WORKERS

# By name of the codec; the others are grey.
COLOURS = {"none": "black", "topk": "tab:blue", "qsgd": "tab:orange", "maxnorm": "tab:red", "powersgd": "tab:green", "randomk": "tab:purple"}
COLOURS |= {"dgc": "tab:cyan", "sharedk": "tab:brown", "sketch": "tab:gray", "powergossip": "tab:olive", "dpsgd": "tab:olive", "efsign": "tab:pink", "x:lgc": "magenta"}
# Where a number may stand beside its dot, in points.
PLACES = [(dx, dy) for dy in range(0, 70, 7) for sign in (1, -1) for dx in (4, -11) for dy in [sign * dy]]
CLEARANCE_POINTS = (11, 6.5)
# What errs by more, or learns less, is left out: the rest would be in one spot.
MOST_ERROR, LEAST_ACCURACY = 2, 60
MOST_LETTERS = 72


def plot(report, path):
    """Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 8})
    figure, axes = pyplot.subplots(3, 1, figsize=(10, 15))
    axes[0].set(xscale="log", xlabel="bits a coordinate", ylabel="‖decoded − p‖² / ‖p‖², p = residual + gradient")
    axes[1].set(xscale="log", xlabel="kB that a worker sends for a batch", ylabel="test accuracy at equal steps, %")
    axes[2].set(xscale="log", xlabel="MB that a worker has sent", ylabel="training loss")
    figure.subplots_adjust(left=0.075, right=0.6, top=0.99, bottom=0.035, hspace=0.12)
    draw(axes[0], errors(report), is_up=False)
    draw(axes[1], accuracies(report), is_up=True)
    curves(axes[2], report)
    for number, method in enumerate(METHODS):
        text = f"{number + 1:2}  {shortened(method.spelling)}"
        figure.text(0.615, 0.978 - number * 0.96 / len(METHODS), text, fontsize=6.5, color=colour(method))
    figure.savefig(path, dpi=110)


def shortened(spelling):
    """What there is room for."""
    spelling = spelling.replace("4294967295", "…").replace(",clock=none", "")
    return spelling if len(spelling) <= MOST_LETTERS else spelling[: MOST_LETTERS - 1] + "…"


def colour(method):
    """Of its codec."""
    return COLOURS.get(method.codec_name, "grey")


def errors(report):
    """Method, bits and error on residuals."""
    found = [(method, report.bits(method), report.error(method)) for method in METHODS]
    return [(method, bits[1], error[1]) for method, bits, error in found if len(error) > 1 and error[1] <= MOST_ERROR]


def accuracies(report):
    """Method, kB a batch and accuracy."""
    found = [(method, report.bytes_a_batch(method) / 1000, found.mean()) for method, found in report.at_steps.items()]
    return [(method, sent, accuracy) for method, sent, accuracy in found if accuracy >= LEAST_ACCURACY]


def curves(axis, report):
    """A line for each method of the longer runs, the mean of its seeds."""
    ends = []
    for method in report.at_length:
        courses = report.courses(method)
        sent = [statistics.mean(sums) for sums in zip(*(accumulate(course["bytes"]) for course in courses))]
        losses = [statistics.mean(values) for values in zip(*(course["loss"] for course in courses))]
        megabytes = [value / WORKERS / 1e6 for value in sent[WINDOW - 1 :: WINDOW]]
        axis.plot(megabytes, losses, linewidth=1, color=colour(method))
        ends.append((method, megabytes[-1], losses[-1]))
    # On their left, numbers would hide the curves.
    write_numbers(axis, ends, [(dx, dy) for dx, dy in PLACES if dx > 0])


def draw(axis, points, *, is_up):
    """A dot and a number for each, and a line for those at the front."""
    for method, x, y in points:
        axis.plot(x, y, "o", markersize=4, color=colour(method))
    front = best(points, is_up=is_up)
    axis.step([x for _, x, _ in front], [y for _, _, y in front], where="post", color="silver", linewidth=1, zorder=0)
    write_numbers(axis, points, PLACES, bold=[method for method, _, _ in front])


def write_numbers(axis, points, places, bold=()):
    """Beside each point, where there is room."""
    # Sets the limits, and with them where a dot is.
    axis.figure.canvas.draw()
    taken = []
    for method, x, y in points:
        at = axis.transData.transform((x, y)) * 72 / axis.figure.dpi
        place = next((place for place in places if all(is_clear(at + place, other) for other in taken)), places[0])
        taken.append(at + place)
        style = {"fontsize": 6, "color": colour(method), "weight": "bold" if method in bold else "normal"}
        axis.annotate(METHODS.index(method) + 1, (x, y), xytext=place, textcoords="offset points", va="center", **style)


def is_clear(place, other):
    """Whether two numbers can be read."""
    return any(abs(one - two) > least for one, two, least in zip(place, other, CLEARANCE_POINTS))


def best(points, *, is_up):
    """From the smallest x on, those that are better than all before."""
    front = []
    for point in sorted(points, key=lambda point: (point[1], -point[2] if is_up else point[2])):
        if not front or (point[2] > front[-1][2] if is_up else point[2] < front[-1][2]):
            front.append(point)
    return front
