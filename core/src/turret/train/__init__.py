"""Training: the run in a folder, its engine, checkpoints, metrics and telemetry."""

from .checkpoint import CheckpointStore as CheckpointStore
from .checkpoint import read_checkpoint as read_checkpoint
from .checkpoint import read_manifest as read_manifest
from .config import RunConfig as RunConfig
from .engine import Engine as Engine
from .finetune import FinetuneConfig as FinetuneConfig
from .finetune import FinetuneResult as FinetuneResult
from .finetune import run_finetuning as run_finetuning
from .load import Trained as Trained
from .load import load_model as load_model
from .metrics import StepMetrics as StepMetrics
from .metrics import read_metrics as read_metrics
from .opening import Opened as Opened
from .opening import open_model as open_model
from .run import RunResult as RunResult
from .run import run_training as run_training
from .telemetry import Observer as Observer
