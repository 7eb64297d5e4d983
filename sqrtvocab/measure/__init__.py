"""What a computation costs: memory, floating-point operations, time."""

from sqrtvocab.measure.memory import Allocated, allocated_by

__all__ = ["Allocated", "allocated_by"]
