"""`make fuzz`: the targets of tests/fuzz, guided by coverage, each for a while.

`python tools/fuzz.py [--seconds 60] [TARGET…]`. Needs atheris (extra `fuzz`); every target runs in
a process of its own, with bounds on time and memory for each input. The exit code is 1 if one of
them found something; the input is kept, and printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

INPUT_SECONDS = 10
MEMORY_MIB = 2048
MOST_BYTES = 4096


def main() -> int:
    """Runs the targets that are named, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*")
    arguments, rest = parser.parse_known_args()
    if arguments.inside:
        fuzz(arguments.inside, Path(*arguments.targets), rest)
        return 0
    names = arguments.targets or names_of_all()
    failed = [name for name in names if not ran_well(name, arguments.seconds)]
    print(f"found something: {', '.join(failed)}" if failed else "nothing was found")
    return int(bool(failed))


def names_of_all() -> list[str]:
    """Of the targets, in their order."""
    from tests.fuzz.targets import TARGETS

    return [target.name for target in TARGETS]


def ran_well(name: str, seconds: int) -> bool:
    """Fuzzes one target in another process; whether it found nothing."""
    kept = Path(tempfile.mkdtemp(prefix=f"penstock-fuzz-{name}-"))
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, __file__, "--inside", name, f"-max_total_time={seconds}",
         f"-timeout={INPUT_SECONDS}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={MOST_BYTES}",
         f"-artifact_prefix={kept}/", "-print_final_stats=1", str(kept)],
        capture_output=True, text=True, timeout=seconds + 300, check=False,
    )  # fmt: skip
    report = done.stderr.splitlines()
    stats = {line.split()[0]: line.split()[-1] for line in report if line.startswith("stat::")}
    coverage = next((line for line in reversed(report) if " cov: " in line), "")
    executed = stats.get("stat::number_of_executed_units:", "no")
    print(
        f"{name:12} {executed:>10} inputs in {time.monotonic() - started:.0f} s, "
        f"{coverage[coverage.find('cov:') : coverage.find(' corp')] or 'no coverage'}, "
        f"{stats.get('stat::peak_rss_mb:', '?')} MiB",
        flush=True,
    )
    if done.returncode:
        print("\n".join(report[-40:]))
        print(f"inputs are kept in {kept}", flush=True)
    return not done.returncode


def fuzz(name: str, corpus: Path, options: list[str]) -> None:
    """In the process of one target: does not return."""
    import atheris

    with atheris.instrument_imports(include=["penstock"]):
        from tests.fuzz.targets import TARGETS
    (target,) = [each for each in TARGETS if each.name == name]
    for number, example in enumerate(target.examples()):
        (corpus / f"example-{number}").write_bytes(example)
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
