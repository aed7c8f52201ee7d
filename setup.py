"""What pyproject.toml cannot state yet: compiled modules that an install may do without."""

from setuptools import Extension, setup

LAYOUT = "src/penstock/wire/_bytes.h"

setup(
    ext_modules=[  # without a compiler their twins run, and instead of _sending the event loop
        Extension(
            "penstock.engine._foresight", ["src/penstock/engine/_foresight.c"],
            depends=[LAYOUT], optional=True,
        ),
        Extension("penstock.wire._packing", ["src/penstock/wire/_packing.c"], optional=True),
        Extension(
            "penstock.wire._plain", ["src/penstock/wire/_plain.c"], depends=[LAYOUT], optional=True,
        ),
        Extension("penstock.node._syncing", ["src/penstock/node/_syncing.c"], optional=True),
        Extension("penstock.node._sending", ["src/penstock/node/_sending.c"], optional=True),
    ]
)
