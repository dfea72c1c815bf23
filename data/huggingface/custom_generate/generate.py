"""What transformers runs for `model.generate(..., custom_generate="FOLDER", trust_remote_code=True)`."""

from dynatree_lib.hf import recipe as generate

__all__ = ["generate"]
