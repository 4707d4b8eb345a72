"""Fine-tuning: a base model learns from examples, whole or through low-rank adapters."""

from .config import FinetuneConfig as FinetuneConfig
from .run import FinetuneResult as FinetuneResult
from .run import run_finetuning as run_finetuning
