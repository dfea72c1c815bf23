#!/usr/bin/env bash
# The records of the precision audit: where rounding changes greedy texts of the bundled pair, of drafted trees and of plain decoding
# itself. bfloat16, which flips now and then, on more prompts than float32 and float16. About four minutes on two cores.
#
#   tools/precision_reference.sh [OUT]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-outputs/reference/cpu}
mkdir -p "$out"
dynatree() { python3 -m dynatree_lib "$@"; }

dynatree precision --pair tiny --dtypes float32,float16 --rows 2,8,32 --limit 8 --max-new-tokens 48 \
  --json "$out/precision.json" | tee "$out/precision.txt"
dynatree precision --pair tiny --dtypes bfloat16 --limit 30 --max-new-tokens 64 \
  --json "$out/precision-bfloat16.json" | tee "$out/precision-bfloat16.txt"
