"""What the cells of the study say: tables, and a file with all that was recorded."""

import io
import statistics
import tarfile
from pathlib import Path

from cells import NOMINAL, PARTS, STEPS_AN_EPOCH, THESIS, TIMES

# Checkpoints can be made again, and settings name folders of a machine.
KEPT = ["metrics.jsonl", "summary.json", "diverged.txt"]
# All parts but the runs that choose rates.
ROWS = [part for part in PARTS if part != "pre"]
# Steps at the beginning of a run, which allocate.
WARM_UP = 4


def table(study):
    """One row for each finished cell. The test set was read once, with the parameters of the end."""
    columns = ["codec", "workers", "seed", "rate", "nominal ratio", "counted ratio", "validation ppl", "epochs to best"]
    head([*columns, "epochs to dense's best", "test ppl", "thesis, 1 and 2 workers"])
    for cell in (cell for part in ROWS for cell in PARTS[part]):
        if not study.is_done(cell):
            continue
        thesis = ", ".join("-" if value is None else f"{value:.1f}" for value in THESIS[cell.codec])
        about = [f"`{cell.spelling}`", cell.workers, cell.seed, f"{study.rate(cell):g}", f"{NOMINAL[cell.codec]:g} ×"]
        if study.diverged(cell):
            row([*about, "-", "diverged", "-", "-", "diverged", thesis])
            continue
        summary, found = study.summary(cell), perplexities(study, cell)
        best = [f"{min(found):.1f}", 1 + found.index(min(found)), epochs_to_dense(study, cell, found)]
        row([*about, f"{summary['ratio']:.4g} ×", *best, f"{summary['perplexity']:.1f}", thesis])


def perplexities(study, cell):
    """On the validation part, after each epoch."""
    return [line["perplexity"] for line in study.metrics(cell) if line.get("perplexity") is not None]


def epochs_to_dense(study, cell, found):
    """The first epoch that is as good as the best one of the dense cell with the same seed, workers and momentum."""
    dense = cell.dense()
    if not study.is_done(dense):
        return "not run"
    best = min(perplexities(study, dense), default=0.0)
    return next((epoch for epoch, value in enumerate(found, 1) if value <= best), "-")


def times(study):
    """Milliseconds of an epoch, from the median of the steps of four workers, which are threads of one process."""
    head(["codec", "computing, s an epoch", "encoding, ms", "exchange, ms", "decoding, ms"])
    for cell in TIMES:
        lines = study.metrics(cell)[WARM_UP:]
        parts = ["compute", "encode", "exchange", "decode"]
        compute, *others = [STEPS_AN_EPOCH * statistics.median(line[f"{part}_ns"] for line in lines) for part in parts]
        row([cell.codec, f"{1e-9 * compute:.0f}", *(f"{1e-6 * value:.0f}" for value in others)])


def export(runs, path, content=Path.read_bytes, files=KEPT):
    """All that was recorded, in one order and without dates, so that the same cells give the same bytes."""
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for file in [*sorted(runs.folder.glob("*/*")), *runs.folder.glob("study.json")]:
            if file.name in [*files, "study.json"]:
                kept = content(file)
                about = tarfile.TarInfo(str(file.relative_to(runs.folder)))
                about.size = len(kept)
                archive.addfile(about, io.BytesIO(kept))


def head(columns):
    row(columns)
    row(["---"] * len(columns))


def row(values):
    print("|", " | ".join(map(str, values)), "|")
