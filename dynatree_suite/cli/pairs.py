"""`dynatree pairs`: the named pairs, and whether each can be used here."""

from __future__ import annotations

import argparse

from dynatree_lib.models.pairs import PAIRS, load_pair


def main(args: argparse.Namespace) -> int:
    """Print the table, or check a pair."""
    if args.check:
        pair = load_pair(args.check, device_map=args.device, dtype=args.dtype)
        for role, model in (("target", pair.target), ("draft", pair.draft)):
            kind, dtype = model.model.config.model_type, str(model.dtype).removeprefix("torch.")
            print(f"{role}: {kind}, {model.parameters / 1e6:.2f} M parameters, {model.layers} layers, {dtype}")
            print(f"{'':6}  vocabulary {model.vocab_size}, context {model.context}")
        print("tree attention: checked on both models")
        return 0
    for name, spec in PAIRS.items():
        gate = " (gated: needs an access token)" if spec.gated else ""
        print(f"{name:22} {spec.target} + {spec.draft}{gate}; {spec.used_in}")
    return 0
