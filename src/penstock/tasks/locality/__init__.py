"""Locality: tasks go to where their data is, unless that host has too much to do.

Nobody decides where a task runs when it is submitted: it lands anywhere. Whoever pulls it looks
where its data is, and sends it there or keeps it; the last word is said when it is about to run.
"""

from __future__ import annotations

from penstock.tasks.locality.decisions import Data, Step, Turn, decide
from penstock.tasks.locality.directory import Directory
from penstock.tasks.locality.engine import Engine, Placed, Run, Send

__all__ = ["Data", "Directory", "Engine", "Placed", "Run", "Send", "Step", "Turn", "decide"]
