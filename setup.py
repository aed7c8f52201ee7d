"""What pyproject.toml cannot state yet: compiled modules that an install may do without."""

from setuptools import Extension, setup

setup(
    ext_modules=[  # without a compiler, wire/packing.py runs its twin, and node/early.py nothing
        Extension("penstock.wire._packing", ["src/penstock/wire/_packing.c"], optional=True),
        Extension("penstock.node._sending", ["src/penstock/node/_sending.c"], optional=True),
    ]
)
