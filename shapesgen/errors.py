"""What can go wrong for reasons outside the code. The messages are for the user, in one line."""


class SettingsError(Exception):
    """What was asked for cannot be done. The message names the flag or the folder."""


class WriteError(Exception):
    """Writing failed on the way; finished shards are kept."""


class DamagedShardError(Exception):
    """A shard cannot be read, or does not hold what it should. The message names it."""
