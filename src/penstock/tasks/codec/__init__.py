"""Values as bytes: arguments on their way to a worker, results on their way back.

msgpack, with extensions for what plain msgpack would forget. Bytes from a stranger never run code:
classes are looked up only among loaded modules of trusted packages, and pickles are taken only
with the signature of a key that both sides were given.
"""

from __future__ import annotations

from penstock.tasks.codec.codec import Codec, Parent, Trusted, pack_blob

__all__ = ["Codec", "Parent", "Trusted", "pack_blob"]
