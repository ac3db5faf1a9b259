#!/usr/bin/env bash
# Shows the bridge on this machine: a real Nacos, a service registered in it, asked by dig; then Nacos goes away.
# Needs what start-nacos.sh needs, dig, and nacosdns on the path. Everything it starts it also ends.
# env: DEMO_NACOS_PORT=18848   DEMO_DNS_PORT=15300
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
nacos_port=${DEMO_NACOS_PORT:-18848}
dns_port=${DEMO_DNS_PORT:-15300}
work=$(mktemp -d)
export NACOS_DATA=$work/nacos NACOS_PUSH_DELAY_MS=0
started=()

finish() {
  for pid in "${started[@]}"; do
    kill "$pid" 2> /dev/null && wait "$pid" 2> /dev/null || true
  done
  "$here/stop-nacos.sh" "$NACOS_DATA" > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() {
  printf '$ %s\n' "$*"
  "$@"
}
ask() { dig +short +tries=1 +time=2 -p "$dns_port" @127.0.0.1 "$@" | grep -v '^;' || true; }

# Waits until `ask NAME` gives as many addresses as wanted.
until_there_are() {
  local wanted=$1 name=$2 end=$((SECONDS + 30))
  until [ "$(ask "$name" | wc -l)" = "$wanted" ]; do
    if [ "$SECONDS" -ge "$end" ]; then
      echo "$name did not get $wanted addresses within 30 s" >&2
      cat "$work"/*.log >&2
      exit 1
    fi
    sleep 0.1
  done
}

cat > "$work/bridge.toml" <<TOML
[server]
listen = ["127.0.0.1:$dns_port"]
user = ""
[nacos]
servers = ["127.0.0.1:$nacos_port"]
[web]
listen = ""
[cache]
dir = "$work/state"
TOML

say "A real Nacos on port $nacos_port (the first time this fetches its jars) …"
"$here/start-nacos.sh" "$nacos_port" > /dev/null

say "The bridge on 127.0.0.1:$dns_port …"
nacosdns run -c "$work/bridge.toml" 2> "$work/bridge.log" &
started+=($!)

say "A service with two instances, kept in Nacos by nacosdns itself …"
nacosdns register orders --instance 10.0.0.1:8080@1 --instance 10.0.0.2:8080@3 -c "$work/bridge.toml" \
  2> "$work/register.log" &
started+=($!)
until_there_are 2 orders.nacos
show ask orders.nacos A
show ask orders.nacos SRV
show nacosdns ask orders.nacos -c "$work/bridge.toml"

say "Nacos goes away; the answers stay."
"$here/stop-nacos.sh" "$NACOS_DATA" > /dev/null
until_there_are 2 orders.nacos
show ask orders.nacos A
show nacosdns services -c "$work/bridge.toml"
say "Done."
