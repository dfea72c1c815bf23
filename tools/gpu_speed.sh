#!/usr/bin/env bash
# Speed on a large NVIDIA GPU, in one command: costs with the shapes of Pythia-2.8B/70M and random weights, a pair of the
# 160M/14M shapes trained from local text for earned acceptance, and both joined. Needs Python with torch, transformers,
# safetensors, numpy, numba, pandas and tokenizers; no network, no install. docs/gpu.md has what an H200 gave.
#
#   tools/gpu_speed.sh OUT [DATA] [MINUTES]
#
# DATA holds wikitext-2-raw/, pg19/, gsm8k/, mbpp/; without it, or where training fails, the bundled tiny pair is measured.
# MINUTES bounds the training (default 8). OUT gets gpu_speed.json, pair.jsonl, the pair and logs; a failed part loses no
# other, and a second call goes on after the last measurement made. Afterwards, copy the two records to outputs/reference/<gpu>/.
set -uo pipefail
out=${1:?folder for the results} data=${2:-} minutes=${3:-8} pair=tiny failed=0
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
[ -z "$data" ] || data=$(cd "$data" && pwd) || exit 1
cd "$(dirname "$0")/.." || exit 1
speed() { python3 -m dynatree_lib gpu "$out" "$@" 2>&1 | tee -a "$out/gpu_speed.log"; }

speed --parts shapes || failed=1
if [ -n "$data" ]; then
  if [ -f "$out/pythia-160m-14m/target/config.json" ] || python3 -m dynatree_lib train --recipe pythia-160m-14m --data "$data" \
    --out "$out/pythia-160m-14m" --work "$out/work" --device cuda --max-minutes "$minutes" 2>&1 | tee "$out/train.log"; then
    pair=$out/pythia-160m-14m
  else
    failed=1
  fi
fi
speed --parts pair,joined --pair "$pair" || failed=1
rm -rf "$out/work"
exit $failed
