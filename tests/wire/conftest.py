"""Hypothesis without deadlines, as the machine may be busy; and both versions of the packing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from penstock.wire import packing

settings.register_profile("steady", deadline=None, max_examples=60)
settings.load_profile("steady")


@pytest.fixture(scope="module", params=["compiled", "pure"])
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the tests of a module on the compiled packing, if it was built, and on its twin."""
    if request.param == "compiled" and not packing.COMPILED:
        pytest.skip("the compiled packing was not built, or PENSTOCK_PURE is set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "COMPILED", request.param == "compiled")
        yield request.param
