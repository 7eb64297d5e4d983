"""What both trainers share: where a run computes, what it trains on next, what it keeps and what it tells.

Each loop stays visible in its own script (`classifier/train.py`, `lm/train.py`); these are the parts it is
made of.
"""

from sqrtvocab.atomic import require_space, write_json, write_text
from sqrtvocab.errors import RunError, UserError, exit_code
from sqrtvocab.training.accumulate import exchange_gradients, share_of_mean
from sqrtvocab.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sqrtvocab.training.logbook import Logbook, markdown_table, read_metrics
from sqrtvocab.training.order import BatchPlan
from sqrtvocab.training.run_folder import find_checkpoint, read_config, require_same, require_same_checkpoint
from sqrtvocab.training.runtime import Runtime, choose_device, choose_dtype, open_runtime
from sqrtvocab.training.schedule import learning_rate
from sqrtvocab.training.stop import StopWatch
from sqrtvocab.training.tally import Tally, not_finite

__all__ = [
    "BatchPlan",
    "Checkpoint",
    "Logbook",
    "RunError",
    "Runtime",
    "StopWatch",
    "Tally",
    "UserError",
    "choose_device",
    "choose_dtype",
    "exchange_gradients",
    "exit_code",
    "find_checkpoint",
    "learning_rate",
    "load_checkpoint",
    "markdown_table",
    "not_finite",
    "open_runtime",
    "read_config",
    "read_metrics",
    "require_same",
    "require_same_checkpoint",
    "require_space",
    "save_checkpoint",
    "share_of_mean",
    "write_json",
    "write_text",
]
