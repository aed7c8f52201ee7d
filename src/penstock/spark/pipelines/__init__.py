"""Pipelines as files: sources, steps and sinks in TOML, run as streams of Spark."""

from __future__ import annotations

from penstock.spark.pipelines.build import Built, build
from penstock.spark.pipelines.check import check_live
from penstock.spark.pipelines.draw import as_mermaid, as_tree
from penstock.spark.pipelines.problems import Problem, SpecError
from penstock.spark.pipelines.progress import Figures
from penstock.spark.pipelines.reading import read_pipeline
from penstock.spark.pipelines.run import run_pipeline
from penstock.spark.pipelines.spec import Pipeline, Sink, Source, Step

__all__ = [
    "Built",
    "Figures",
    "Pipeline",
    "Problem",
    "Sink",
    "Source",
    "SpecError",
    "Step",
    "as_mermaid",
    "as_tree",
    "build",
    "check_live",
    "read_pipeline",
    "run_pipeline",
]
