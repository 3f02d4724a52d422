"""Benchmarks: the time and memory of a training step, phase by phase."""

from sparsesnn.bench.step import StepResult, bench_step
from sparsesnn.bench.workload import Workload

__all__ = ["StepResult", "Workload", "bench_step"]
