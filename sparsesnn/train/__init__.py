"""Training: the loop, checkpoints, metrics and plots.

config = Config.resolve({"data": {"name": "digits"}, "train": {"epochs": 5}})
result = train(config, out="runs/first")
"""

from sparsesnn.config import Config
from sparsesnn.train.evaluation import SavedRun, evaluate, evaluate_run, load_run
from sparsesnn.train.loop import train
from sparsesnn.train.metrics import Result, Tally
from sparsesnn.train.report import Report
from sparsesnn.train.signals import StoppedError

__all__ = [
    "Config",
    "StoppedError",
    "Report",
    "Result",
    "SavedRun",
    "Tally",
    "evaluate",
    "evaluate_run",
    "load_run",
    "train",
]
