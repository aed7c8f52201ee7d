"""Garbage goes in moments of rest; a process of its own, as it is that of a whole process."""

from __future__ import annotations

import subprocess
import sys

_WORK = """
import gc, weakref
from penstock.node.tidy import AT_REST, AT_WORK, Tidy

class Thing:
    pass

tidy = Tidy()
assert gc.get_threshold()[0] == AT_WORK
gc.disable()  # from here on, only what is said counts
gc.collect()
assert not tidy.is_due()
kept = [[] for _ in range(AT_REST + 1)]
assert tidy.is_due()
thing = Thing()
thing.itself = thing
gone = weakref.ref(thing)
del thing
assert gone() is not None
tidy.collect()
assert gone() is None
assert not tidy.is_due()
"""

_LONG_WORK = """
import gc, weakref
from penstock.node import tidy as module

class Thing:
    pass

module._YOUNG_COLLECTIONS, module._OLD_COLLECTIONS = 10, 5
tidy = module.Tidy()
gc.disable()
for survived in (1, 20, 100):  # collections: of the new, of those that survived that, of the old
    thing = Thing()
    thing.itself = thing
    gone = weakref.ref(thing)
    for _ in range(survived):
        tidy.collect()
    del thing
    needed = 0
    while gone() is not None:
        tidy.collect()
        needed += 1
        assert needed <= 12 * 7, survived
"""


def test_what_is_new_and_garbage_is_collected_when_enough_came():
    subprocess.run([sys.executable, "-c", _WORK], check=True, timeout=60)


def test_what_has_survived_is_collected_when_it_is_garbage():
    subprocess.run([sys.executable, "-c", _LONG_WORK], check=True, timeout=60)
