"""Limits of the protocol. A node may set lower ones; nobody may exceed these."""

from __future__ import annotations

MAX_FRAME_BYTES = 17 << 20
MAX_BATCH_BYTES = 16 << 20
MAX_BATCH_MESSAGES = 1 << 20
MAX_RAW_BYTES = 64 << 20  # of a compressed batch's body, once opened
MAX_NAME_BYTES = 200
MAX_KEY_BYTES = 64 << 10
MAX_TABLE_KEY_BYTES = 1024
MAX_TABLE_VALUE_BYTES = 1 << 20
MAX_ID_BYTES = 256
MAX_PRIORITY = 15
MAX_IN_FLIGHT = 1024  # requests of one connection
MAX_SETTLEMENTS = 65_536  # items of one frame
MAX_PARTITIONS = 4096
MAX_STATE_BYTES = 256 << 10  # committed with an offset
MAX_STATES = 60  # told in one answer
MAX_RESERVE_MS = 60_000  # of a claim that is given up in favour of another
MAX_LEASE_MS = 12 * 3600 * 1000
MAX_DELAY_MS = 366 * 86_400_000  # of a nack
MAX_TTL_MS = 100 * 366 * 86_400_000  # of a table's entry
MAX_GANG_MEMBERS = 1000
MAX_GANG_BYTES = 64 << 20  # of a gang's message, as often as it is sent: once to every member
MAX_ADDRESS_BYTES = 256  # of a worker that waits for a gang
