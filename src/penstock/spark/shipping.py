"""This package as one file, for workers on which Penstock is not installed."""

from __future__ import annotations

import zipfile
from pathlib import Path


def package_file(folder: Path) -> Path:
    """Writes the package's Python files to `penstock.zip` in a folder.

    Workers need what Penstock depends on (msgspec, NumPy, xxhash, lz4, zstandard, pyarrow) from
    elsewhere; the compiled module stays behind, and its Python twin is used.
    """
    root = Path(__file__).parent.parent
    target = folder / "penstock.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(root.rglob("*.py")):
            packed.write(path, Path("penstock") / path.relative_to(root))
    return target
