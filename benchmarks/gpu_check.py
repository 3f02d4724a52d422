"""The check for a machine with a GPU: whether the engine `gpu` gives the bits of `cpu`, and how fast it is.

    python benchmarks/gpu_check.py bits                    3 minutes at most; stops at the first fault
    python benchmarks/gpu_check.py speed                   4 minutes at most
    python benchmarks/gpu_check.py prepare --architecture sm_90    compiles their kernels on a machine without a GPU
    python benchmarks/gpu_check.py references              the engine `cpu` writes the expected numbers, and activities
    python benchmarks/gpu_check.py bits --device emulated  a dry run on a CPU, with small networks; so with speed

`bits`: small random networks, their losses, lists and weights against the numbers in benchmarks/results/gpu_bits.json; compute-sanitizer's
memcheck and racecheck, if it is installed; the weights after 20 steps of three networks. `speed`: copies, each kernel alone, whole training
steps, other implementations, the host's share. They write bits.txt and speed.txt (and .json) into --out, after each part. The exit status is
0 if nothing failed, 1 if something did, and 2 if the device cannot be used.

It needs nothing but a checkout with the compiled engine in sparsesnn/, as an editable installation leaves it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "tests" / "gpu", ROOT / "benchmarks", ROOT):
    sys.path.insert(0, str(folder))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("what", choices=("bits", "speed", "prepare", "references", "one-step"))
    made.add_argument("--device", default="cuda", help="cuda, cuda:0, …, or emulated")
    made.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check", help="folder of the report")
    made.add_argument("--seconds", type=float, default=0.0, help="time limit; default: 180 for bits, 240 for speed")
    made.add_argument("--architecture", default="sm_90", help="of prepare")
    made.add_argument("--no-rivals", action="store_true", help="speed: without other libraries and torch.compile")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.device == "emulated":
        os.environ["SPARSESNN_GPU"] = "emulated"
    from gpu_checks import bits, devices, networks, speed
    from gpu_checks.report import Report

    is_dry = options.device == "emulated"
    device = "cuda" if is_dry else options.device
    size = networks.DRY if is_dry else networks.FULL
    if options.what == "references":
        networks.write_references()
        return 0
    if options.what == "one-step":
        bits.one_step(device)
        return 0
    if options.what == "prepare":
        with devices.replaced(lambda: devices.Idle(options.architecture)):
            n_kernels = bits.visit_kernels(networks.FULL) + speed.visit_kernels(networks.FULL)
        print(f"the kernels of {n_kernels} networks are in the cache")
        return 0
    limit = options.seconds or {"bits": 180.0, "speed": 240.0}[options.what]
    report = Report(options.what, options.out, limit)
    if options.what == "bits":
        bits.check(report, device, size)
    else:
        speed.measure(report, device, size, rivals=not options.no_rivals)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
