"""The bundled kernels, exposed the way a Hub kernel exposes its own: as classes of `layers`.

Nothing here imports the rest of kerncfg, and nothing here needs triton to be imported: triton is
loaded by the first call that runs on a GPU, or on the CPU under `TRITON_INTERPRET=1`.
"""

from kerncfg.kernels import layers

__all__ = ["layers"]
