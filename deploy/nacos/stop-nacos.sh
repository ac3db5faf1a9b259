#!/bin/bash
# Stops a server that start-nacos.sh started. usage: stop-nacos.sh [HTTP_PORT | DATA_DIRECTORY] [-9]
set -euo pipefail
home=${NACOS_HOME_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/nacosdns/nacos}
which=${1:-${NACOS_DATA:-${NACOS_PORT:-8848}}}
signal=TERM
[ "${2:-}" = -9 ] && signal=KILL
case $which in */*) data=$which ;; *) data=${NACOS_DATA:-$home/data/$which} ;; esac
[ -f "$data/pid" ] || { echo "stop-nacos: no pid file in $data" >&2; exit 0; }
pid=$(cat "$data/pid")
kill -"$signal" "$pid" 2>/dev/null || true
for _ in $(seq 1 150); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
kill -KILL "$pid" 2>/dev/null || true
rm -f "$data/pid"
