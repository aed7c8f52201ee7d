"""MapReduce on tasks: count words, sort, search; over files that all workers see.

Maps are plain tasks; reduces are held in the queue until their maps have ended. Workers are started
with `penstock worker penstock.tasks.mapreduce`.
"""

from __future__ import annotations

from penstock.tasks.mapreduce.jobs import Done, Job, Submits
from penstock.tasks.mapreduce.search import grep
from penstock.tasks.mapreduce.sorting import Records, sort
from penstock.tasks.mapreduce.words import wordcount

__all__ = ["Done", "Job", "Records", "Submits", "grep", "sort", "wordcount"]
