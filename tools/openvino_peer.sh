#!/usr/bin/env bash
# Installs OpenVINO GenAI in an environment of its own, whose torch is the project's, and exports SmolLM2 for it as fp32, int8 and int4, so that
# `python3 -m tools.peers bench` can measure it as the method openvino. About five minutes on two cores.
#
#   tools/openvino_peer.sh [FOLDER]      then: export DYNATREE_OPENVINO=FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/dynatree/openvino}")
python=$PWD/.venv/bin/python # of `make setup`
[ -x "$python" ] || python=python3
mkdir -p "$folder"
if [ ! -x "$folder/env/bin/optimum-cli" ]; then
  "$python" -m venv --clear "$folder/env"
  site=$("$folder/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' >"$site/project.pth"
  torch=$("$python" -c 'import torch; print(torch.__version__.partition("+")[0])')
  # `datasets` of the project's own version needs a huggingface-hub that optimum-intel does not take
  "$folder/env/bin/python" -m pip install --quiet "torch==$torch" "optimum-intel[openvino]==2.2.0" "openvino-genai==2026.4.1.0" "datasets==4.4.1"
  "$folder/env/bin/python" -m pip uninstall --quiet --yes torchvision # text needs none, and one made for another torch stops transformers
fi
model=$("$python" -c 'from dynatree_lib.models.fetch import fetched; print(fetched("smollm2"))')
for weights in fp32 int8 int4; do
  [ ! -e "$folder/$weights/openvino_model.bin" ] || continue
  part=$folder/$weights.part
  rm -rf "$part" "${folder:?}/$weights"
  "$folder/env/bin/optimum-cli" export openvino --model "$model" --task text-generation-with-past --weight-format "$weights" \
    $([ "$weights" != int4 ] || echo --group-size 32 --ratio 1.0) "$part" >>"$folder/export.log" 2>&1
  mv "$part" "$folder/$weights"
done
echo "export DYNATREE_OPENVINO=$folder"
