#!/bin/sh
# Four workers of the same speed on machines of their own, whose links carry 100 Mbit/s: an MLP of 990,000 parameters, the same torch loop for all.
# Usage: ./network.sh [seeds] [contestants]   (PY = python of the venv); needs root
cd "$(dirname "$0")" || exit 1
PY=${PY:-python}
for seed in ${1:-0 1 2}; do
  for one in ${2:-ddp ssgd qsgd adpsgd cpsgd diloco}; do
    how="--peer paceline_torch --variant $one"
    [ "$one" = ddp ] && how="--peer ddp"
    # shellcheck disable=SC2086
    ${SLOT:-} $PY drive.py uneven $how --link 100mbit --epochs 40 --model 1m --sec-per-sample 0.002 0.002 0.002 0.002 --seeds "$seed" \
      --limit "${LIMIT:-240}" --tag "network-$one-s$seed" || echo "network $one $seed failed"
  done
done
