"""What pyproject.toml cannot state yet: a compiled module that an install may do without."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "penstock.wire._packing",
            ["src/penstock/wire/_packing.c"],
            optional=True,  # without a compiler, wire/packing.py runs its twin
        )
    ]
)
