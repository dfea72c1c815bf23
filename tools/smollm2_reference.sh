#!/usr/bin/env bash
# The records on the pair smollm2. Each run of texts has 39 prompts of Spec-Bench (3 of each of its 13 categories), 128 tokens and at most
# a dozen methods in turn, and takes about half an hour on two cores; nothing else should run. A stopped run goes on. The lines of a
# finished run are packed (RUN.jsonl.gz); remove that file to repeat the run.
#
#   tools/smollm2_reference.sh [OUT] [RUN ...]
#
# RUN, all but float32-all, bfloat16-all and the defaults by default:
#   forwards                     times of forwards by engine, dtype and number of tokens
#   float32, bfloat16            greedy texts, with weights of this dtype in memory
#   quantised                    greedy texts in float32, with the weights read as 4 bits, and llama.cpp on them
#   float32-0.5, float32-1, quantised-1  texts at this temperature
#   default-quantised, -bytes, -bfloat16, -float32, -quantised-1, -float32-1  the default drafter, with the pair's draft and without one,
#                                and others; bytes: 4 bits with inputs rounded to 8 bits
#   float32-peers, bfloat16-peers  llama.cpp and the fastest methods
#   float32-openvino, bfloat16-openvino, quantised-openvino  OpenVINO GenAI, the default and plain decoding
#   depths                       plain decoding by the depth of the text, and llama-bench's
#   float32-all, bfloat16-all    the tuned methods, transformers' and llama.cpp's in one run
#   untrained, untrained-carried drafters without training, alone and in unions, in float32; carried: with what earlier prompts taught
#   llama-bench                  llama.cpp's plain decoding as its own tool measures it
#   judged                       token-level verification and traversal on the same trees, temperature 1
#   precision                    greedy texts that rounding changes
#   audit                        tests whether sampled tokens follow the target
# What a run calls tuned was tuned before it, on bundled prompts. DYNATREE_DATA names the folder with spec_bench/, DYNATREE_LLAMA_CPP the one
# that tools/llama_cpp_peer.sh made; quantised, the peers, depths and llama-bench need it. DYNATREE_OPENVINO names the one of tools/openvino_peer.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-outputs/reference/smollm2}
shift || true
runs=${*:-forwards float32 bfloat16 quantised float32-0.5 float32-1 quantised-1 float32-peers bfloat16-peers untrained untrained-carried llama-bench judged precision audit}
mkdir -p "$out"
dynatree() { python3 -m tools.peers "$@" | sed "/^Saved in /d"; } # no record names where it was saved

forwards() {
  python3 - "$out/forwards.json" <<'PYTHON'
import json, sys
from pathlib import Path
from dynatree_lib import load_pair
from dynatree_suite.costs.cost_growth import forward_times
from dynatree_suite.bench.bandwidth import ceilings, forward_bytes, measure_bandwidth
from dynatree_suite.bench.environment import describe_environment

PREFIX, found = 256, {}
for dtype in ("float32", "bfloat16"):
    engines = ("eager", "packed", "compiled", *(["quantised"] if dtype == "float32" else []))
    pairs = {engine: load_pair("smollm2", dtype=dtype, engine=engine) for engine in engines}
    targets = {engine: pair.target for engine, pair in pairs.items()}
    model = targets["compiled"]
    speeds = measure_bandwidth(model.device, forward_bytes(model), "before")
    times = forward_times(targets, (1, 2, 4, 8, 16, 32), PREFIX)
    drafts = {f"draft in {dtype}": load_pair("smollm2", dtype=dtype, draft_dtype=dtype).draft}
    levels = forward_times(drafts, (1, 2, 4, 8, 16), PREFIX)
    speeds += measure_bandwidth(model.device, forward_bytes(model), "after")
    fastest = max(max(one.read, one.copy) for one in speeds)
    bounds = {engine: 1000 / ceilings(targets[engine], PREFIX, fastest, 1.0)["memory"] for engine in engines[2:]}
    found[dtype] = {"target": times, "draft": levels, "bytes_per_second": fastest, "bound_milliseconds": bounds}
body = json.dumps({"environment": describe_environment(), "prefix": PREFIX, **found}, indent=1) + "\n"
Path(sys.argv[1]).write_text(body, encoding="utf-8")
PYTHON
}

texts() {
  local run=$1 dtype=${1%%-*} engine=compiled temperature=0 methods=hf-generate,ar-fast kinds tool
  local programs=llama-cpp
  for tool in lookup lookahead speculative tree; do programs=$programs,llama-cpp:tool=$tool; done
  [ "$dtype" != default ] || { dtype=${run#default-}; dtype=${dtype%%-*}; }
  [ "$dtype" != quantised ] || { engine=quantised dtype=float32; }
  [ "$dtype" != bytes ] || { engine=bytes dtype=float32; }
  case $run in
    default-*)
      local about=${run#default-}
      [ $engine != quantised ] || engine=auto # of quantised weights; `bytes` is by name only
      kinds=lookup-tree methods=ar-fast,ar,auto,auto:alone=true,lookup-tree,cost-aware-tree,prompt-lookup,token-recycling
      case $about in *-*) temperature=${about#*-} methods=$methods,sampled-tree:branching=1,cost-aware-sampled-tree ;; *) methods=$methods,chain:length=4,fixed-tree,suffix-tree,ptd ;; esac
      ;;
    untrained*)
      local first= further=
      dtype=float32 kinds=lookup-tree
      if [ "$run" = untrained ]; then kinds=$kinds,suffix-tree,token-recycling,union-tree; else first=:carry=true further=,carry=true; fi
      methods=$methods,prompt-lookup,suffix-tree$first,token-recycling$first,token-recycling:context=1$further
      methods="$methods,union-tree:first=suffix-tree,second=token-recycling;max_nodes=32,max_nodes=64$further"
      methods=$methods,union-tree:max_nodes=64$further
      for tool in lookup-tree suffix-tree token-recycling; do methods=$methods,$tool:max_nodes=64$further; done # parts of a union alone
      ;;
    *-all)
      methods=$methods,hf-assisted,$programs kinds=chain,cost-aware-tree,lookup-tree
      ;;
    *-openvino)
      local weights=fp32 each
      case $dtype$engine in bfloat16*) weights=bf16 ;; *quantised) weights="int8 int4" engine=auto ;; esac
      kinds= methods=ar-fast,auto,auto:alone=true
      for each in $weights; do methods=$methods,openvino:weights=$each,openvino:weights=$each,lookup=true; done
      ;;
    *-peers)
      methods=$methods,prompt-lookup,$programs kinds=lookup-tree,ptd
      ;;
    quantised)
      methods=$methods,hf-assisted,prompt-lookup,chain:length=4,fixed-tree,llama-cpp:weights=q4_1,llama-cpp:tool=lookup,weights=q4_1
      kinds=chain,cost-aware-tree,lookup-tree,ptd
      ;;
    *-*)
      temperature=${run#*-} kinds=sampled-tree,cost-aware-sampled-tree,cost-aware-tree,lookup-tree
      methods=$methods,chain:length=4,sampled-tree:branching=1,verifier=token-level
      methods=$methods,sampled-tree:branching=2/1,sampled-tree:branching=2/1,verifier=token-level
      ;;
    *) methods=$methods,hf-assisted,chain:length=4,fixed-tree,adaptive-tree,ptd kinds=chain,cost-aware-tree,lookup-tree ;;
  esac
  local tuned=$out/tuned-$run.json lines=$out/$run.jsonl chosen=()
  [ ! -f "$lines.gz" ] || return 0
  [ -z "$kinds" ] || chosen=(--tuned "$tuned")
  [ -z "$kinds" ] || [ -f "$tuned" ] || dynatree tune --pair smollm2 --dtype "$dtype" --engine $engine --temperature "$temperature" --methods "$kinds" \
    --max-new-tokens 64 --out "$tuned" | tee "$out/tuned-$run.txt"
  dynatree bench --pair smollm2 --dtype "$dtype" --engine $engine --workload spec-bench/categories --limit 39 --max-new-tokens 128 --stop-at-eos \
    --temperature "$temperature" --methods "$methods" "${chosen[@]}" --trace --json "$out/$run.json" --records "$lines" \
    $([ -f "$lines" ] && echo --resume) | tee "$out/$run.txt"
  python3 -m tools.pack_records "$lines"
}

for run in $runs; do
  case $run in
    forwards) forwards ;;
    precision)
      dynatree precision --pair smollm2 --dtypes float32,bfloat16 --rows 2,8,32 --limit 9 --max-new-tokens 64 \
        --methods chain:length=4,fixed-tree,lookup-tree --json "$out/precision.json" | tee "$out/precision.txt"
      ;;
    depths) python3 -m tools.peers_by_depth "$out/depths.json" ;;
    llama-bench)
      folder=${DYNATREE_LLAMA_CPP:?names the folder that tools/llama_cpp_peer.sh made}
      for weights in f32 bf16 q4_1; do
        "$folder/bin/llama-bench" -m "$folder/target-$weights.gguf" -t 2 -p 0 -n 128 -r 5 -fa 0,1
      done | tee "$out/llama-bench.txt"
      ;;
    judged)
      dynatree judge --pair smollm2 --workload spec-bench/categories --limit 39 --max-new-tokens 64 --out "$out/judged.jsonl" --overwrite \
        --trees sampled-tree:branching=1,depth=4,sampled-tree:branching=2/1,depth=4 | tee "$out/judged.txt"
      gzip -9nf "$out/judged.jsonl"
      ;;
    audit)
      dynatree audit --pair smollm2 --limit 18 --max-new-tokens 64 --out "$out/audit.json" --overwrite | tee "$out/audit.txt"
      ;;
    *) texts "$run" ;;
  esac
done
