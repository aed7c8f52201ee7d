"""Check README.md and docs: relative links resolve, and blocks marked as running do run.

A block is run when it is fenced as ``python`` and the line right above its fence is
``<!-- runs -->``. Each one gets an empty directory and an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

MARK = "<!-- runs -->"
BLOCK_TIMEOUT_S = 120
FENCE = re.compile(r"^\s*(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
INLINE_CODE = re.compile(r"(`+)(?:(?!`).)+?\1")
LINKS = (
    re.compile(r"\]\(\s*<?([^\s<>)]+)>?[^)]*\)"),
    re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?([^\s<>]+)"),
    re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\""),
)
EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//|#)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; ``line`` is the 1-based line of its opening fence."""

    line: int
    language: str
    runs: bool
    source: str


def split_page(text: str) -> tuple[list[tuple[int, str]], list[Block]]:
    """Return the numbered lines outside fences, and the fenced blocks.

    Raises ValueError when a fence is left open.
    """
    prose: list[tuple[int, str]] = []
    blocks: list[Block] = []
    lines = enumerate(text.splitlines(), start=1)
    above = ""
    for number, line in lines:
        fence = FENCE.match(line)
        if fence is None:
            prose.append((number, line))
        else:
            source = "\n".join(read_block(lines, fence["ticks"], number))
            blocks.append(Block(number, fence["language"], above.strip() == MARK, source))
        above = line
    return prose, blocks


def read_block(lines: Iterator[tuple[int, str]], ticks: str, opened_at: int) -> list[str]:
    """Take lines up to the closing fence, which is taken too."""
    body: list[str] = []
    for _, line in lines:
        stripped = line.strip()
        if stripped.startswith(ticks) and not stripped.strip(ticks[0]):
            return body
        body.append(line)
    raise ValueError(f"{opened_at}: the fence is never closed")


def broken_links(root: Path, page: Path, prose: list[tuple[int, str]]) -> Iterator[str]:
    """Yield a problem for each relative link that names no file inside the repository."""
    for number, line in prose:
        visible = INLINE_CODE.sub("", line)
        for target in (found for link in LINKS for found in link.findall(visible)):
            if EXTERNAL.match(target):
                continue
            path = unquote(re.split(r"[#?]", target, maxsplit=1)[0])
            base = root if path.startswith("/") else page.parent
            resolved = (base / path.lstrip("/")).resolve()
            if not resolved.is_relative_to(root) or not resolved.exists():
                yield f"{number}: no such file: {target}"


def run_block(block: Block) -> str | None:
    """Run a block; return what went wrong, or None. No process it started is left behind."""
    # A file, not a pipe: a node that the block left running would keep a pipe open for ever.
    with (
        tempfile.TemporaryDirectory(prefix="penstock-docs-") as directory,
        tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as output,
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(block.source)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(BLOCK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"{block.line}: the block did not end in {BLOCK_TIMEOUT_S} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return f"{block.line}: the block failed\n{output.read().rstrip()}" if status else None


def check_page(root: Path, page: Path) -> tuple[int, list[str]]:
    """Return how many blocks of the page were run, and its problems."""
    try:
        prose, blocks = split_page(page.read_text(encoding="utf-8"))
    except ValueError as error:
        return 0, [str(error)]
    problems = list(broken_links(root, page, prose))
    marked = [block for block in blocks if block.runs]
    for block in marked:
        if block.language != "python":
            problems.append(f"{block.line}: only python blocks can be marked as running")
        elif (problem := run_block(block)) is not None:
            problems.append(problem)
    return len(marked), problems


def main() -> int:
    """Check every page; return the exit status."""
    root = Path(__file__).resolve().parent.parent
    readme = root / "README.md"
    pages = ([readme] if readme.exists() else []) + sorted((root / "docs").rglob("*.md"))
    blocks_run = 0
    failed = False
    for page in pages:
        count, problems = check_page(root, page)
        blocks_run += count
        failed = failed or bool(problems)
        for problem in problems:
            print(f"{page.relative_to(root)}:{problem}", file=sys.stderr)
    print(f"{len(pages)} pages checked, {blocks_run} blocks run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
