"""Machine code for forwards of few tokens on a CPU. An entry point imports this module, which registers its engines."""

from dynatree_lib.models.engine import register

register("linears", f"{__name__}.linears:PackedLinears")
register("lean", f"{__name__}.gpt_neox:LeanGPTNeoX")
register("packed", f"{__name__}.packed:Packed")
register("compiled", f"{__name__}.compiled:Compiled")
register("quantised", f"{__name__}.compiled:Quantised")
register("rounded", f"{__name__}.compiled:Rounded")
register("bytes", f"{__name__}.compiled:Bytes")
