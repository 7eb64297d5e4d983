"""How a set can go wrong through no fault of what was asked for; the messages are one line each."""

from sqrtvocab.errors import RunError


class WriteError(RunError):
    """Writing failed on the way; finished shards are kept."""


class DamagedShardError(RunError):
    """A shard cannot be read, or does not hold what it should. The message names it."""
