"""The layer classes that a mapping can name, as in `builtin:RMSNorm`."""

from kerncfg.kernels.rms_norm import RMSNorm
from kerncfg.kernels.rms_norm_mlp import RMSNormMLP
from kerncfg.kernels.swiglu import SwiGLUMLP

__all__ = ["RMSNorm", "RMSNormMLP", "SwiGLUMLP"]
