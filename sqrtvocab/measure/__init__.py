"""What a computation costs: memory, floating-point operations, time."""

from sqrtvocab.measure.flops import Flops, count_flops
from sqrtvocab.measure.gpu import GPU, GPUS, ROUNDING, gpu_rules
from sqrtvocab.measure.machine import describe_machine
from sqrtvocab.measure.memory import Allocated, allocated_by
from sqrtvocab.measure.race import race
from sqrtvocab.measure.simulate import PARTS, Memory, Training, simulate

__all__ = [
    "GPU",
    "GPUS",
    "PARTS",
    "ROUNDING",
    "Allocated",
    "Flops",
    "Memory",
    "Training",
    "allocated_by",
    "count_flops",
    "describe_machine",
    "gpu_rules",
    "race",
    "simulate",
]
