"""What makes decoding fast: engines, static buffers with CUDA graphs, batches, the strongest plain loop."""

from ..models.engines import register

register("linears", f"{__name__}.linears:PackedLinears")
register("lean", f"{__name__}.gpt_neox:LeanGPTNeoX")
register("packed", f"{__name__}.packed:Packed")
register("compiled", f"{__name__}.compiled:Compiled")
register("quantised", f"{__name__}.compiled:Quantised")
