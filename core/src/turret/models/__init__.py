"""The two model families, building one by its word, and loading and saving published models."""

from .base import Cache as Cache
from .base import Checkpointing as Checkpointing
from .base import LanguageModel as LanguageModel
from .base import check_memory as check_memory
from .building import KINDS as KINDS
from .building import build_model as build_model
from .building import model_config as model_config
from .decoder import Decoder as Decoder
from .decoder import DecoderConfig as DecoderConfig
from .mini import Mini as Mini
from .mini import MiniConfig as MiniConfig
from .weights.adapter_files import load_adapter as load_adapter
from .weights.adapter_files import save_adapter as save_adapter
from .weights.load import load_pretrained as load_pretrained
from .weights.pretrained import Pretrained as Pretrained
from .weights.save import save_pretrained as save_pretrained
