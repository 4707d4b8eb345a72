"""The thirteen slots a backend may fill; core composes the rest from the required six.

What a VJP needs is passed as named arrays, never kept as hidden state. Halves are computed in float32 and returned in
the input's dtype; float64 stays float64 throughout, also where a contract says float32 for statistics, probabilities or
a loss. A native slot with limits calls `turret.derived` for the rest: every slot accepts its whole contract.
"""

from .adam import Adam as Adam
from .adam import Adapted as Adapted
from .attention import CausalAttention as CausalAttention
from .attention import FlashAttention as FlashAttention
from .attention import Flashed as Flashed
from .attention import PagedAttention as PagedAttention
from .compile import Compile as Compile
from .neural import Activation as Activation
from .neural import GeluForm as GeluForm
from .neural import Linear as Linear
from .neural import Loss as Loss
from .neural import Normalization as Normalization
from .neural import Normed as Normed
from .neural import Rope as Rope
from .neural import Softmax as Softmax
from .quantized import Packed as Packed
from .quantized import QuantizedLinear as QuantizedLinear
from .quantized import ScaleCode as ScaleCode
from .random import Random as Random
