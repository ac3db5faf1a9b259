#!/bin/bash
# Starts three members of a real Nacos cluster on 127.0.0.1 (embedded storage, raft among themselves), 0.5 GB each.
# usage: start-cluster.sh [BASE_PORT]      members: BASE, BASE+10, BASE+20, each with the ports of start-nacos.sh
# Prints "PORT PID" for each. Stop one: stop-nacos.sh DATA/PORT [-9]. Start one again:
# NACOS_MEMBERS=127.0.0.1:BASE,... NACOS_DATA=DATA/PORT start-nacos.sh PORT. DATA is NACOS_DATA, see README.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${NACOS_HOME_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/nacosdns/nacos}
base=${1:-18848}
root=${NACOS_DATA:-$home/data/cluster-$base}
ports=("$base" $((base + 10)) $((base + 20)))
NACOS_MEMBERS=$(printf '127.0.0.1:%s,' "${ports[@]}")
export NACOS_MEMBERS=${NACOS_MEMBERS%,}

start() { NACOS_NOWAIT=1 NACOS_DATA=$root/$1 "$here/start-nacos.sh" "$1" > /dev/null; }
ready() {
  local url=http://127.0.0.1:$1/nacos/v1
  [ "$(curl -s -m 2 "$url/console/health/readiness")" = OK ] &&
    [ "$(curl -s -m 2 -H 'nacos-test: nacos-test' "$url/core/cluster/nodes" | grep -o '"state":"UP"' | wc -l)" = 3 ]
}

for port in "${ports[@]}"; do start "$port"; sleep "${NACOS_STAGGER_S:-4}"; done
end=$((SECONDS + ${NACOS_WAIT_S:-180}))
again=3
for port in "${ports[@]}"; do
  until ready "$port"; do
    if ! kill -0 "$(cat "$root/$port/pid")" 2>/dev/null; then # on a busy machine a first start can time out in derby
      [ "$again" -gt 0 ] || { tail -n 30 "$root/$port/out.log" >&2; exit 1; }
      again=$((again - 1))
      echo "start-cluster: member $port ended, once more" >&2
      rm -f "$root/$port/pid"
      start "$port"
    fi
    [ "$SECONDS" -lt "$end" ] || { echo "start-cluster: not ready in time, see $root" >&2; exit 1; }
    sleep 0.5
  done
done
for port in "${ports[@]}"; do echo "$port $(cat "$root/$port/pid")"; done
