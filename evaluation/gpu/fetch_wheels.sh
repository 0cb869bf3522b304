#!/usr/bin/env bash
# Download the wheels that a GPU machine with PyTorch and transformers lacks: fetch_wheels.sh DIR
# For CPython 3.12 on x86-64 Linux. About 15 MB. DIR can then be carried to a machine without internet.
set -euo pipefail
folder=${1:?usage: fetch_wheels.sh DIR}
python=${PYTHON:-python3}
platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux_2_5 manylinux1; do
    platforms+=(--platform "${platform}_x86_64")
done
mkdir -p "$folder"
"$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "${platforms[@]}" --dest "$folder" \
    trl==1.16.0 datasets==5.2.0 dill multiprocess fastapi uvicorn starlette pydantic==2.14.4 pydantic-core==2.50.5 \
    annotated-types typing-inspection opentelemetry-api google-re2 py-spy msgspec rich execnet pytest-xdist pytest-timeout
du -sh "$folder"
