"""The command line."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest


def gradwire(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("ending", ["npy", "npz", "safetensors"])
def test_a_file_makes_the_round_trip(tmp_path: Path, ending: str) -> None:
    arrays = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(4, np.float16)}
    match ending:
        case "npy":
            np.save(tmp_path / "g.npy", arrays["w"])
        case "npz":
            np.savez(tmp_path / "g.npz", **arrays)
        case _:
            pytest.importorskip("safetensors.numpy").save_file(arrays, tmp_path / "g.safetensors")
    done = gradwire(tmp_path, "encode", "none", f"g.{ending}", "g.gw", "--step", "3")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    done = gradwire(tmp_path, "decode", "g.gw", f"back.{ending}", "--like", f"g.{ending}")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    if ending == "npy":
        np.testing.assert_array_equal(np.load(tmp_path / "back.npy"), arrays["w"])
    if ending == "npz":
        with np.load(tmp_path / "back.npz") as back:
            assert list(back.files) == ["w", "b"]
            np.testing.assert_array_equal(back["w"], arrays["w"])
    shown = gradwire(tmp_path, "inspect", "g.gw").stdout
    assert "step         3" in shown
    assert "dense" in shown


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("name", ["g.npy", "./g.npy", "below/../g.npy", "hard.npy", "soft.npy"])
def test_no_result_takes_the_place_of_what_is_read(tmp_path: Path, name: str, force: list[str]) -> None:
    np.save(tmp_path / "g.npy", np.arange(12, dtype=np.float32))
    (tmp_path / "below").mkdir()
    (tmp_path / "hard.npy").hardlink_to(tmp_path / "g.npy")
    (tmp_path / "soft.npy").symlink_to("g.npy")
    assert gradwire(tmp_path, "encode", "none", "g.npy", "g.gw").returncode == 0
    before = (tmp_path / "g.npy").read_bytes()
    for arguments in (["encode", "none", "g.npy", name], ["decode", "g.gw", name, "--like", "g.npy"]):
        done = gradwire(tmp_path, *arguments, *force)
        assert done.returncode == 1
        assert "the same file as g.npy" in done.stderr, done.stderr
    assert (tmp_path / "g.npy").read_bytes() == before


def test_another_file_is_overwritten_with_force_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "g.npy", np.arange(12, dtype=np.float32))
    (tmp_path / "other").write_bytes(b"kept")
    done = gradwire(tmp_path, "encode", "none", "g.npy", "other")
    assert (done.returncode, "other: exists already" in done.stderr) == (1, True), done.stderr
    assert (tmp_path / "other").read_bytes() == b"kept"
    assert gradwire(tmp_path, "encode", "none", "g.npy", "other", "--force").returncode == 0
    assert (tmp_path / "other").read_bytes().startswith(b"GW")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.npy", "other"]


def test_codecs_are_listed_and_measured(tmp_path: Path) -> None:
    np.save(tmp_path / "g.npy", np.random.default_rng(1).normal(size=1000).astype(np.float32))
    listed = gradwire(tmp_path, "list").stdout
    assert "powersgd:rank=1 linear ef no" in [" ".join(line.split()) for line in listed.splitlines()]
    measured = gradwire(tmp_path, "bench", "g.npy", "topk:density=0.1", "none", "--repeats", "2")
    assert "topk:density=0.1" in measured.stdout, measured.stderr
    assert len(measured.stdout.splitlines()) == 4
    assert gradwire(tmp_path, "--version").stdout.strip() == version("gradwire")


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    for arguments in (["list"], ["--help"]):
        command = [sys.executable, "-m", "gradwire", *arguments]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
            assert one.stdout is not None
            assert one.stderr is not None
            one.stdout.close()
            assert (one.stderr.read(), one.wait()) == ("", 0), arguments


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["encode", "topk:density=7", "g.npy", "g.gw"], "density=7: expected a fraction"),
        (["encode", "none", "missing.npy", "g.gw"], "No such file"),
        (["encode", "none", "g.txt", "g.gw"], "expected a .npy, .npz or .safetensors file"),
        (["encode", "none", "d.npy", "g.gw"], "d: expected float32 or float16, got float64"),
        (["inspect", "d.npy"], "bad magic"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, arguments: list[str], told: str) -> None:
    np.save(tmp_path / "g.npy", np.zeros(4, np.float32))
    np.save(tmp_path / "d.npy", np.zeros(4))
    done = gradwire(tmp_path, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "g.gw").exists()
