"""What both trainers share: where a run computes, what it trains on next, what it keeps and what it tells.

Each loop stays visible in its own script (`classifier/train.py`, `lm/train.py`); these are the parts it is
made of.
"""

from sqrtvocab.atomic import require_space, write_json, write_text
from sqrtvocab.errors import RunError, UserError, exit_code
from sqrtvocab.settings import read_config
from sqrtvocab.training.accumulate import exchange_gradients, share_of_mean
from sqrtvocab.training.batch_plan import BatchPlan
from sqrtvocab.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sqrtvocab.training.logbook import Logbook, markdown_table, read_metrics
from sqrtvocab.training.run import Document, Run, open_run
from sqrtvocab.training.run_folder import RunFolder, look_into_folder
from sqrtvocab.training.runtime import Runtime, choose_device, choose_dtype, open_runtime
from sqrtvocab.training.schedule import learning_rate, set_learning_rate
from sqrtvocab.training.stop import StopRequests
from sqrtvocab.training.tally import Tally, not_finite
from sqrtvocab.training.window import Report, Window

__all__ = [
    "BatchPlan",
    "Checkpoint",
    "Document",
    "Logbook",
    "Report",
    "Run",
    "RunError",
    "RunFolder",
    "Runtime",
    "StopRequests",
    "Tally",
    "UserError",
    "Window",
    "choose_device",
    "choose_dtype",
    "exchange_gradients",
    "exit_code",
    "learning_rate",
    "load_checkpoint",
    "look_into_folder",
    "markdown_table",
    "not_finite",
    "open_run",
    "open_runtime",
    "read_config",
    "read_metrics",
    "require_space",
    "save_checkpoint",
    "set_learning_rate",
    "share_of_mean",
    "write_json",
    "write_text",
]
