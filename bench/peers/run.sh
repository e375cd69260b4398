#!/bin/sh
# Everything, one contestant at a time. Usage: ./run.sh [faults|uneven|quota|overhead|all]   (PY = python of the venv)
cd "$(dirname "$0")"
PY=${PY:-python}
D="$PY drive.py"
HM='{"matchmaking_time":1.0,"request_timeout":0.5,"averaging_timeout":10.0,"tracker_opts":{"min_refresh_period":0.1,"default_refresh_period":0.5}}'
want() { [ "${1}" = "$what" ] || [ all = "$what" ]; }
what=${1:-all}

if want faults; then
  $D faults --peer paceline --variant resnet8 --kills 10 --between 1 3 --ft-timeout 2 --tag paceline
  $D faults --peer paceline_torch --kills 10 --between 1 3 --ft-timeout 2 --tag paceline_torch
  $D faults --peer torchft --kills 10 --ft-timeout 5 --heartbeat-ms 1000 --tag torchft-5s-hb1s
  $D faults --peer torchft --kills 3 --ft-quorum-timeout 300 --tag torchft-q300
  $D faults --peer torchft --kills 1 --variant shipped --ft-timeout 5 --heartbeat-ms 1000 --tag torchft-shipped
  $D stalls --peer torchft --kills 6 --hold 12 --ft-timeout 5 --tag torchft-5s
  $D restarts --peer torchrun --ckpt-every 50 --kills 10 --tag torchrun
  $D faults --peer hivemind --kills 10 --warm 3 --down 4 --target-batch 256 --hm "$HM" --tag hivemind-256
fi
if want uneven; then
  $D uneven --peer ddp --tag ddp
  $D uneven --peer ddp --variant proportional --tag ddp-proportional
  $D uneven --peer ddp --variant postlocal --tag ddp-postlocal8
  $D uneven --peer torchft --tag torchft
  $D uneven --peer hivemind --target-batch 1024 --hm "{\"use_local_updates\":true,${HM#?}" --tag hivemind-local1024
  $D uneven --peer hivemind --target-batch 256 --lr 0.4 --hm "$HM" --tag hivemind-256
fi
if want quota; then     # cgroup v1 CPU quota, real compute: 0.88 core in all
  Q="--quota 0.32 0.32 0.16 0.08 --burn 1"
  $D uneven $Q --peer ddp --tag quota-ddp
  $D uneven $Q --peer ddp --variant proportional --tag quota-ddp-proportional
  $D uneven $Q --peer ddp --variant postlocal --tag quota-ddp-postlocal8
  $D uneven $Q --peer torchft --tag quota-torchft
fi
if want overhead; then
  $D overhead --batch 64
fi
$PY summary.py
