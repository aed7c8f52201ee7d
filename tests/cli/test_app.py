from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from tests.cli.conftest import invoke

from penstock.cli.app import OTHERS, module_name


def test_help_imports_nothing_heavy():
    program = (
        "import sys, penstock.cli.app; "
        "heavy = {'numpy', 'asyncio', 'msgspec', 'penstock.client', 'penstock.node'}; "
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_command_shows_what_there_is():
    shown = invoke()
    assert shown.code == 2
    for command in ("serve", "queue", "topic", "table", "top", "stats", "doctor", "version"):
        assert command in shown.out + shown.err


@pytest.mark.parametrize("name", OTHERS)
def test_programs_of_their_own_get_all_arguments(name):
    if importlib.util.find_spec(f"penstock.cli.{module_name(name)}") is None:
        assert invoke(name).code == 2
        return
    shown = invoke(name, "--help")
    assert shown.code == 0
    assert f"penstock {name}" in shown.out
    assert invoke(name, "--no-such-option").code == 2
