"""Every public name is documented, and every docstring runs."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradwire

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
README = Path(__file__).resolve().parents[1] / "README.md"


def documented(thing: Any, name: str) -> Iterator[tuple[str, str]]:
    yield name, thing.__doc__ or ""
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        for key, member in vars(thing).items():
            if not key.startswith("_"):
                yield from documented(member, f"{name}.{key}")


DOCS = dict(documented(gradwire, "gradwire"))
for public in gradwire.__all__:
    if public not in ("CODECS", "FORMAT_VERSIONS", "SAVED_MEMORY_VERSIONS", "__version__"):
        DOCS |= documented(getattr(gradwire, public), public)


@pytest.mark.parametrize("name", DOCS)
def test_docstrings_are_there_and_run(name: str) -> None:
    assert DOCS[name].strip(), "no docstring"
    example = doctest.DocTestParser().get_doctest(DOCS[name], {}, name, None, 0)
    assert doctest.DocTestRunner().run(example).failed == 0


def test_there_are_examples() -> None:
    assert sum(">>>" in text for text in DOCS.values()) > 30


@pytest.mark.parametrize("page", [PAGE, README], ids=["docs/python.md", "README.md"])
def test_the_code_of_a_page_runs(page: Path) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
    assert code
    exec(compile(code, str(page), "exec"), {})


def test_free_threaded_python_is_refused_in_one_line() -> None:
    code = """
import sysconfig
asked = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else asked(name)
import gradwire
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: gradwire needs a Python with the GIL, and this one is free-threaded" in done.stderr
