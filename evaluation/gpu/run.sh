#!/usr/bin/env bash
# All GPU checks in nine minutes, offline: run.sh OUT [options of evaluation.gpu.run]
# Wheels in ./.whl (evaluation/gpu/fetch_wheels.sh .whl) are installed beside the machine's own PyTorch and transformers.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: run.sh OUT [--device cuda|cpu] [--budget SECONDS]}
shift
python=${PYTHON:-python3}
if compgen -G '.whl/*.whl' >/dev/null; then
    site=$(mktemp -d)
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" .whl/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PATH="$site/bin:$PATH"
fi
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
exec "$python" -m evaluation.gpu.run "$out" "$@"
