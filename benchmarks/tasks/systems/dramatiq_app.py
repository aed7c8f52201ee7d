"""What Dramatiq's workers import; only processes that have Dramatiq can."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.tasks import calls
from benchmarks.tasks.system import REDIS_VARIABLE

_URL = os.environ[REDIS_VARIABLE]

broker = RedisBroker(url=_URL)
broker.add_middleware(Results(backend=RedisBackend(url=_URL)))
dramatiq.set_broker(broker)
null = dramatiq.actor(calls.null, store_results=True)
nap = dramatiq.actor(calls.nap, store_results=True)
