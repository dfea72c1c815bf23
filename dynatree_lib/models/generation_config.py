"""What a checkpoint's generation config asks for that changes texts, and that the decoding loop does not apply."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

from ..sampling import Sampling

PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1, "encoder_repetition_penalty": 1, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "sequence_bias": None, "suppress_tokens": None,
    "begin_suppress_tokens": None, "forced_bos_token_id": None, "forced_eos_token_id": None, "min_length": 0,
    "min_new_tokens": 0, "exponential_decay_length_penalty": None, "watermarking_config": None, "guidance_scale": 1,
    "num_beams": 1, "penalty_alpha": 0, "dola_layers": None,
}  # fmt: skip
"""Settings that change greedy texts -> the value that changes none, as None does."""
ENDINGS = dict.fromkeys(("stop_strings", "max_time"))
"""Settings that end a text."""
SAMPLING = dict.fromkeys(("do_sample", "temperature", "top_k", "top_p"))
"""Settings that a `Sampling` does the work of."""
WARPING = dict.fromkeys(("min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff"))
"""Settings of sampling that it does not."""
_WARNED: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""Transformers model -> settings of it that a warning has named."""


def unapplied(config: Any, sampling: Sampling | None, processed: bool, ended: bool) -> dict[str, Any]:
    """Return the settings that change texts and that nothing in a call takes the place of, by name.

    Args:
        config: a `GenerationConfig`.
        sampling: of the call, or None.
        processed: whether the call has logits processors, which stand for penalties.
        ended: whether it has criteria or stop strings.
    """
    usual: dict[str, Any] = {}
    if not processed:
        usual |= PENALTIES
    if not ended:
        usual |= ENDINGS
    if config.do_sample and sampling is None:
        usual |= SAMPLING
    if config.do_sample and not processed and (sampling is None or not sampling.greedy):
        usual |= WARPING
    values = {name: getattr(config, name, None) for name in usual}
    return {name: value for name, value in values.items() if value not in (None, [], usual[name])}


def warn_of(model: Any, name: str, sampling: Sampling | None, processed: bool, ended: bool) -> None:
    """Warn of what is `unapplied` of a transformers model's config; of each setting once for a model."""
    if model.generation_config is None:
        return
    warned = _WARNED.setdefault(model, set())
    found = unapplied(model.generation_config, sampling, processed, ended)
    found = {setting: value for setting, value in found.items() if setting not in warned}
    if not found:
        return
    warned.update(found)
    listed = ", ".join(f"{setting}={value!r}" for setting, value in found.items())
    warnings.warn(
        f"The generation config of '{name}' asks for {listed}, which is not applied here. dt.generate applies it with "
        "**dt.hf.options(target, prompt) among its arguments, and model.generate with "
        "custom_generate=dt.hf.generate; if you do not want it, set it to None in target.model.generation_config.",
        stacklevel=4,
    )
