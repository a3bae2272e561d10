"""MWRA: which devices serve which policy, and which policy runs when."""

from mrl.allocation.placement import Placement, Slice
from mrl.allocation.plan import plan
from mrl.allocation.problem import Cost, Demand, Device, Inventory, Kind, Node, Phase
from mrl.allocation.scheduler import Gang, Scheduler, Start
from mrl.allocation.simulate import Faults, Outcome, Workload, simulate, workloads_of

__all__ = [
    "Cost",
    "Demand",
    "Device",
    "Faults",
    "Gang",
    "Inventory",
    "Kind",
    "Node",
    "Outcome",
    "Phase",
    "Placement",
    "Scheduler",
    "Slice",
    "Start",
    "Workload",
    "plan",
    "simulate",
    "workloads_of",
]
