"""Generating text: sampling, stop rules, text that streams, and the decode loop."""

from .conversation import Conversation as Conversation
from .decode import Decoding as Decoding
from .decode import generate_ids as generate_ids
from .decode import generate_text as generate_text
from .sampling import Sampler as Sampler
from .sampling import SamplingConfig as SamplingConfig
from .stop import Completion as Completion
from .stop import StopReason as StopReason
from .stop import StopRules as StopRules
from .stop import eos_of as eos_of
from .text import TextStream as TextStream
