"""Layers: the module tree and the parts transformers are built from."""

from .attention import AttentionForm as AttentionForm
from .attention import CausalSelfAttention as CausalSelfAttention
from .attention import LayerCache as LayerCache
from .block import Block as Block
from .feed_forward import FeedForward as FeedForward
from .feed_forward import GatedFeedForward as GatedFeedForward
from .init import Init as Init
from .linear import Embedding as Embedding
from .linear import Linear as Linear
from .module import Module as Module
from .module import ModuleList as ModuleList
from .normalization import LayerNorm as LayerNorm
from .normalization import RMSNorm as RMSNorm
from .packed import PackedLinear as PackedLinear
from .precision import computing as computing
from .precision import lowered as lowered
from .regularization import dropout as dropout
from .regularization import dropping as dropping
from .rotary import Rotary as Rotary
from .rotary import Rotation as Rotation
