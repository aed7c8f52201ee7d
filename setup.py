"""What pyproject.toml cannot state yet: compiled modules that an install may do without."""

from setuptools import Extension, setup

setup(
    ext_modules=[  # without a compiler their twins run, and instead of _sending the event loop
        Extension("penstock.wire._packing", ["src/penstock/wire/_packing.c"], optional=True),
        Extension("penstock.wire._plain", ["src/penstock/wire/_plain.c"], optional=True),
        Extension("penstock.store._framing", ["src/penstock/store/_framing.c"], optional=True),
        Extension("penstock.node._sending", ["src/penstock/node/_sending.c"], optional=True),
    ]
)
