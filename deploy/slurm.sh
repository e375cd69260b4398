#!/bin/bash
# Trains on four machines of a Slurm cluster: `sbatch deploy/slurm.sh`. The first task coordinates and works, the others join it. The folder
# from which the job is submitted must be on a disk that all machines share; the token lies there, readable for its owner only.
#
# A job that was ended by its time limit continues where it was: submit it again with RUN=run-1234, the folder of the first one.
#SBATCH --job-name=paceline
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@60
#SBATCH --open-mode=append
set -euo pipefail

run="${RUN:-run-$SLURM_JOB_ID}"
srun --kill-on-bad-exit=0 "${PACELINE:-paceline}" launch --state "$run" --port "${PORT:-7070}" -- \
    --patience 10 --checkpoint-minutes 5 "$@"
