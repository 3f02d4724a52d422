"""From a network and a target description to a plan: the tile of every neuron.

target = parse_target("ipu-mk2:4")
plan = make_plan(network, 48, 100, target)  # B, T
predict(plan).samples_per_s, plan.to_json()  # predictions are for IPUs
"""

from sparsesnn.partition.ipu.cost import predict
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.prediction import Prediction
from sparsesnn.partition.target import Target, parse_target

__all__ = ["Target", "parse_target", "Plan", "make_plan", "Prediction", "predict"]
