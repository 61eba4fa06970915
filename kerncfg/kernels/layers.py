"""The layer classes that a mapping can name, as in `builtin:RMSNorm`."""

from kerncfg.kernels.cross_entropy import ForCausalLMLoss
from kerncfg.kernels.geglu import GeGLUMLP
from kerncfg.kernels.gemma_rms_norm import GemmaRMSNorm
from kerncfg.kernels.layer_norm import LayerNorm
from kerncfg.kernels.rms_norm import RMSNorm
from kerncfg.kernels.rms_norm_mlp import RMSNormMLP
from kerncfg.kernels.rotary import RotaryPosEmb
from kerncfg.kernels.swiglu import SwiGLUMLP

__all__ = [
    "ForCausalLMLoss",
    "GeGLUMLP",
    "GemmaRMSNorm",
    "LayerNorm",
    "RMSNorm",
    "RMSNormMLP",
    "RotaryPosEmb",
    "SwiGLUMLP",
]
