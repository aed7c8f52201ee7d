"""Collecting garbage while nobody waits for the node, and little at a time.

A collection of new objects looks at all of them that live, and nobody is answered meanwhile: of
5,000 it takes up to 4 ms. By themselves collections come while a request is worked on, and if each
of them is small, one single call in a hundred waits for one. So they are made when the loop has
nothing else to do; those that come by themselves are for a node that has no such moments.
"""

from __future__ import annotations

import gc

# New objects, less those that went; a collection looks at up to three times as many.
AT_REST = 200  # takes some 30 us
AT_WORK = 1_000  # takes up to half a millisecond
# What survives lives on for a second, until it is synced, or for long: it is looked at seldom.
_YOUNG_COLLECTIONS, _OLD_COLLECTIONS = 10_000, 100


class Tidy:
    """Of a process that is a node and nothing else, from now on. What is there lives as long as
    the process, and is never looked at again."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(AT_WORK, _YOUNG_COLLECTIONS, _OLD_COLLECTIONS)

    def is_due(self) -> bool:
        """Whether a moment in which there is nothing to do should be used."""
        return gc.get_count()[0] >= AT_REST

    def collect(self) -> None:
        """What is new, and garbage; once in a while, what survived that, too: no collection comes
        by itself as long as there are moments of rest."""
        _, young, old = gc.get_count()
        gc.collect(0 if young <= _YOUNG_COLLECTIONS else 1 if old <= _OLD_COLLECTIONS else 2)
