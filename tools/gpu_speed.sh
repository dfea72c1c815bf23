#!/usr/bin/env bash
# Speed on a large NVIDIA GPU, in one command: costs with the shapes of Pythia-2.8B/70M and random weights, a pair of the
# 160M/14M shapes trained from local text for earned acceptance, and both joined. Needs Python with torch, transformers,
# safetensors, numpy, numba, pandas and tokenizers; no network, no install. docs/gpu.md has what an H200 gave.
#
#   tools/gpu_speed.sh OUT [DATA] [MINUTES]
#
# DATA holds wikitext-2-raw/, pg19/, gsm8k/, mbpp/; without it the bundled tiny pair is measured. MINUTES bounds the
# training (default 8). OUT gets gpu_speed.json, pair.jsonl, the pair and logs; a failed part loses no other, and a second
# call goes on after the last measurement made and the last checkpoint. Where training fails no pair is measured.
# Afterwards, copy the two records to outputs/reference/<gpu>/.
set -uo pipefail
out=${1:?folder for the results} data=${2:-} minutes=${3:-8} pair=tiny failed=0
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
[ -z "$data" ] || data=$(cd "$data" && pwd) || exit 1
cd "$(dirname "$0")/.." || exit 1
speed() { python3 -m tools.gpu_speed "$out" "$@" 2>&1 | tee -a "$out/gpu_speed.log"; }

speed --parts shapes || failed=1
if [ -n "$data" ]; then
  pair=$out/pythia-160m-14m resume=()
  [ ! -f "$out/work/begun.json" ] || resume=(--resume)
  if [ ! -f "$pair/card.json" ]; then
    python3 -m tools.pair_training --recipe pythia-160m-14m --data "$data" --out "$pair" --work "$out/work" --device cuda \
      --max-minutes "$minutes" ${resume[@]+"${resume[@]}"} 2>&1 | tee -a "$out/train.log" || exit 1
  fi
  rm -rf "$out/work"
fi
speed --parts pair,joined --pair "$pair" || failed=1
exit $failed
