"""The configuration of a run, in sections; each option is declared once, at its field.

The declaration of a field (`sparsesnn.options`) defines the reader and its messages, the flags of `sparsesnn train` and the
comments of a printed configuration. Options of a data set come from its module in `sparsesnn.datasets`, arguments of neurons
from their models in `sparsesnn.layers`. Precedence: recipe of the data set < configuration file < command line.
"""

from sparsesnn.config.net import NetConfig
from sparsesnn.config.run import Config, all_options, differences
from sparsesnn.config.sections import DataConfig, InitConfig, LossConfig, OptimConfig, ParallelConfig, TrainConfig

__all__ = [
    "Config",
    "DataConfig",
    "InitConfig",
    "LossConfig",
    "NetConfig",
    "OptimConfig",
    "ParallelConfig",
    "TrainConfig",
    "all_options",
    "differences",
]
