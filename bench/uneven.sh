#!/bin/sh
# Seconds to a target of every recipe beside ssgd, with workers of unequal speed; see uneven.py. ./bench/uneven.sh --help
set -e
cd "$(dirname "$0")/.."
cargo build --release --bin paceline
exec python3 bench/uneven.py "$@"
