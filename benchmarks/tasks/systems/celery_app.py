"""What Celery's workers import; only processes that have Celery can."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.tasks import calls
from benchmarks.tasks.system import REDIS_VARIABLE

_URL = os.environ[REDIS_VARIABLE]

app = Celery("benchmarks", broker=_URL, backend=_URL)
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
null = app.task(calls.null, name="null")
nap = app.task(calls.nap, name="nap")
