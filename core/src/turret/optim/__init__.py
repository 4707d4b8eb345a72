"""Optimizers and schedules."""

from .adam import Adam as Adam
from .adam import AdamStats as AdamStats
from .adam import ParameterGroup as ParameterGroup
from .adam import decay_groups as decay_groups
from .schedule import Schedule as Schedule
from .schedule import constant as constant
from .schedule import warmup_cosine as warmup_cosine
