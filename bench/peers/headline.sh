#!/bin/sh
# Four processes at 1:1:2:4, the same torch model, data and rate for all. Seeds are outermost, so that a busy minute hits all contestants alike.
# Usage: ./headline.sh slept|quota [seeds] [contestants]   (PY = python of the venv); then: $PY headline.py
cd "$(dirname "$0")" || exit 1
PY=${PY:-python}
what=${1:-slept}
seeds=${2:-"0 1 2"}
all="ddp hand-set postlocal8 torchft hivemind hivemind-local ssgd dbs lb-bsp abs adpsgd diloco gossip-pull gossip-push local-dbs easgd"
HM='"matchmaking_time":1.0,"request_timeout":0.5,"averaging_timeout":10.0,"tracker_opts":{"min_refresh_period":0.1,"default_refresh_period":0.5}'
[ "$what" = quota ] && COST="--quota 0.32 0.32 0.16 0.08 --burn 1"      # cgroup v1 CPU quotas, 0.88 cores in all

for seed in $seeds; do
  for one in ${3:-$all}; do
    case $one in
      ddp) how="--peer ddp" ;;
      hand-set) how="--peer ddp --variant proportional" ;;
      postlocal8) how="--peer ddp --variant postlocal" ;;
      torchft) how="--peer torchft" ;;
      hivemind) how="--peer hivemind --target-batch 256 --lr 0.4 --hm {$HM}" ;;
      hivemind-local) how="--peer hivemind --target-batch 1024 --hm {\"use_local_updates\":true,$HM}" ;;
      *) how="--peer paceline_torch --variant $one" ;;
    esac
    # shellcheck disable=SC2086
    ${SLOT:-} $PY drive.py uneven $how $COST --seeds "$seed" --limit "${LIMIT:-120}" --tag "$what-$one-s$seed" || echo "$what $one $seed failed"
  done
done
