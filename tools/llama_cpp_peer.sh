#!/usr/bin/env bash
# Builds llama.cpp's example programs from the sources that llama-cpp-python vendors, and writes SmolLM2 and its draft as GGUF files, so
# that `python3 -m tools.peers bench` can measure them as the method llama-cpp. Needs cmake, ninja and a C++ compiler; about ten minutes on two cores.
#
#   tools/llama_cpp_peer.sh [FOLDER]      then: export DYNATREE_LLAMA_CPP=FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/dynatree/llama.cpp}")
version=0.3.36
python=$PWD/.venv/bin/python # of `make setup`
[ -x "$python" ] || python=python3
mkdir -p "$folder/bin"
if [ ! -x "$folder/bin/llama-speculative" ]; then
  scratch=$(mktemp -d "$folder/build-XXXX")
  trap 'rm -rf "$scratch"' EXIT
  "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$scratch" "llama-cpp-python==$version"
  tar xzf "$scratch"/*.tar.gz -C "$scratch"
  cmake -S "$scratch"/*/vendor/llama.cpp -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_BUILD_EXAMPLES=ON \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF -DBUILD_SHARED_LIBS=OFF >"$folder/build.log"
  ninja -C "$scratch/build" llama-bench llama-completion llama-lookup llama-lookahead llama-speculative-simple llama-speculative >>"$folder/build.log"
  cp "$scratch"/build/bin/llama-* "$folder/bin/"
fi
"$python" -m tools.gguf_files "$folder"
echo "export DYNATREE_LLAMA_CPP=$folder"
