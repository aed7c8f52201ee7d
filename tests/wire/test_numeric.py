"""What is loaded only once it is used: a client that pushes and pops does without numpy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.wire.numeric import np

PACKAGE = Path(penstock.__file__).parent


def test_it_is_numpy():
    assert np.frombuffer(b"\x01\x02", np.uint8).tolist() == [1, 2]
    assert isinstance(np.arange(2), np.ndarray)


def test_what_numpy_does_not_have_is_named():
    with pytest.raises(AttributeError, match="no_such_thing"):
        getattr(np, "no_such_thing")  # noqa: B009


def test_no_module_of_a_client_loads_it_by_itself():
    loads = re.compile(r"^(import numpy|from numpy)", re.MULTILINE)
    layers = ("wire", "core", "cluster", "client")
    modules = [path for layer in layers for path in (PACKAGE / layer).rglob("*.py")]
    assert [path.name for path in modules if loads.search(path.read_text())] == []


def test_a_client_that_is_loaded_has_not_loaded_it():
    ask = "import sys; from penstock import connect; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
