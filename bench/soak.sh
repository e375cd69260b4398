#!/bin/sh
# Kills, stops, adds and lets go processes of real trainings at random moments, through all recipes; see soak.py. ./bench/soak.sh --help
# The same for the workers of `train --processes`, for so many seconds: SOAK_SECONDS=3600 cargo test --release --test processes random_kills
# and for coordinators that are killed with their workers: SOAK_SECONDS=3600 cargo test --release --test clusters random_kills
set -e
cd "$(dirname "$0")/.."
cargo build --release --bin paceline
exec python3 bench/soak.py "$@"
