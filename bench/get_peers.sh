#!/usr/bin/env bash
# Installs the peers of the bench: unbound, dnsmasq, dnsdist and pdns-recursor from Debian, CoreDNS through the Go module
# proxy into .bench/. Root, Debian. None of them is left running: the bench starts its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

policy=/usr/sbin/policy-rc.d # Debian asks this file before it starts a service that it has installed
made=
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
  made=$policy
fi
trap '[ -z "$made" ] || rm -f "$made"' EXIT

packages=(unbound dnsmasq-base dnsdist pdns-recursor util-linux)
command -v cc > /dev/null || packages+=(gcc libc6-dev)
command -v go > /dev/null || packages+=(golang-go)
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"

# Go 1.21 and later fetch the Go that go.mod names by themselves; for an older one we fetch it the same way, as a module.
cd bench/coredns
go=go
if ! go version | awk '{ split(substr($3, 3), part, "."); exit !(part[1] > 1 || part[2] >= 21) }'; then
  toolchain=golang.org/toolchain@v0.0.1-go$(awk '$1 == "go" { print $2 }' go.mod).linux-$(go env GOARCH)
  (cd / && go mod download "$toolchain")
  root=$(go env GOMODCACHE)/$toolchain
  chmod -R u+x "$root/bin" "$root/pkg/tool"
  go=$root/bin/go
fi
mkdir -p ../../.bench
CGO_ENABLED=0 GOTOOLCHAIN=auto "$go" build -trimpath -ldflags='-s -w' -o ../../.bench/coredns .
../../.bench/coredns -version
