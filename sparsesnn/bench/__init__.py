"""Benchmarks: what a training step costs, phase by phase, and what share of the machine's limit it reaches."""

from sparsesnn.bench.step import StepResult, bench_step
from sparsesnn.bench.workload import Workload

__all__ = ["StepResult", "Workload", "bench_step"]
