"""Signed pickles, for those who turn them on: both sides must have been given the same key."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any

from penstock.errors import InvalidError
from penstock.tasks.errors import SerialisationError

MIN_KEY_BYTES = 16
_DIGEST_BYTES = hashlib.sha256().digest_size


def checked_key(key: bytes | None) -> bytes | None:
    """A key to sign with; None turns pickles off."""
    if key is not None and (not isinstance(key, bytes) or len(key) < MIN_KEY_BYTES):
        raise InvalidError(
            f"a pickle key has at least {MIN_KEY_BYTES} bytes",
            advice="Make one with secrets.token_bytes(32), and keep it as you keep a password.",
        )
    return key


def pack_signed(value: object, key: bytes) -> bytes:
    """The signature, then the pickle."""
    try:
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        kind = type(value).__qualname__
        raise SerialisationError(f"a {kind} cannot even be pickled: {error}") from error
    return _signature(pickled, key) + pickled


def unpack_signed(data: memoryview, key: bytes | None) -> Any:
    """What was pickled; nothing is read before the signature was found to be the key's."""
    if key is None:
        raise SerialisationError(
            "a pickle came, and pickles are turned off",
            advice="Give both sides the same pickle_key, if you trust all who have it.",
        )
    pickled = data[_DIGEST_BYTES:]
    if not hmac.compare_digest(data[:_DIGEST_BYTES], _signature(pickled, key)):
        raise SerialisationError(
            "a pickle that was not signed with this key is refused",
            advice="Give both sides the same pickle_key.",
        )
    return pickle.loads(pickled)


def _signature(pickled: bytes | memoryview, key: bytes) -> bytes:
    return hmac.digest(key, pickled, "sha256")
