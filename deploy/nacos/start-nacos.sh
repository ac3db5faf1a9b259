#!/bin/bash
# Gets and starts a real Nacos server on 127.0.0.1, for demo and tests. Needs Java 17, Maven and curl.
# usage: start-nacos.sh [HTTP_PORT]        ports: HTTP_PORT (8848), gRPC +1000 and +1001, raft -1000
# Prints the server's pid, alone on the last line of stdout. Stop it with stop-nacos.sh. Settings: README.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${NACOS_HOME_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/nacosdns/nacos}
pom=$here/server/pom.xml
port=${1:-${NACOS_PORT:-8848}}
data=${NACOS_DATA:-$home/data/$port}
version=${NACOS_VERSION:-2.3.2}
wait_s=${NACOS_WAIT_S:-120}
auth=false
[ "${NACOS_AUTH:-off}" = on ] && auth=true
log() { echo "start-nacos: $*" >&2; }

mkdir -p "$home" "$data/conf"
data=$(cd "$data" && pwd)
if [ -f "$data/pid" ] && kill -0 "$(cat "$data/pid")" 2>/dev/null; then
  log "already running on $port"
  cat "$data/pid"
  exit 0
fi
for taken in "$port" $((port + 1000)) $((port + 1001)) $((port - 1000)); do
  if (exec 3<>"/dev/tcp/127.0.0.1/$taken") 2>/dev/null; then log "port $taken is taken"; exit 1; fi
done

# 1. The jars: fetched once. The list is made again when the pom changed or a jar went away.
case $version in 2.0.4) boot=2.1.17.RELEASE ;; 2.2.3) boot=2.6.14 ;; *) boot=2.7.18 ;; esac
jars=$home/jars-$version-$(cksum < "$pom" | cut -d' ' -f1)
complete() { [ -s "$jars" ] && tr ':' '\n' < "$jars" | while read -r jar; do [ -f "$jar" ] || exit 1; done; }
(
  flock 9
  if ! complete; then
    log "fetching the jars of Nacos $version with Maven"
    mvn -q -B -f "$pom" -Dnacos.version="$version" -Dspring.boot.version="$boot" \
      dependency:build-classpath -Dmdep.outputFile="$jars.tmp" -Dmdep.includeScope=runtime >&2
    mv "$jars.tmp" "$jars"
  fi
) 9> "$home/lock"

# 2. The settings.
cat > "$data/conf/application.properties" <<P
server.port=$port
server.address=127.0.0.1
server.tomcat.accesslog.enabled=false
spring.jmx.enabled=false
nacos.core.auth.enabled=$auth
nacos.core.auth.caching.enabled=false
nacos.core.auth.server.identity.key=nacos-test
nacos.core.auth.server.identity.value=nacos-test
nacos.core.auth.plugin.nacos.token.secret.key=$(printf 'only-for-tests-only-for-tests-only-for-tests' | base64 -w0)
${NACOS_PUSH_DELAY_MS:+nacos.naming.push.pushTaskDelay=$NACOS_PUSH_DELAY_MS}
P
mode=(-Dnacos.standalone=true)
rm -f "$data/conf/cluster.conf"
if [ -n "${NACOS_MEMBERS:-}" ]; then
  mode=(-Dnacos.standalone=false -DembeddedStorage=true)
  tr ',' '\n' <<< "$NACOS_MEMBERS" > "$data/conf/cluster.conf"
fi

# 3. The server. -Dserver.port once more: raft reads it before the settings and would take 7848. Derby need not wait for
#    the disk: nothing here has to survive a power cut, and the first start is 10 s faster.
cd "$data"
# shellcheck disable=SC2086  # NACOS_OPTS is a list
java -Xms64m -Xmx"${NACOS_HEAP:-256m}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "${mode[@]}" \
  -Dserver.port="$port" -Dderby.system.durability=test -Dnacos.home="$data" -Duser.home="$data" -Dnacos.server.ip=127.0.0.1 ${NACOS_OPTS:-} \
  -cp "$(cat "$jars")" com.alibaba.nacos.Nacos \
  --spring.config.additional-location=file:"$data/conf/" > "$data/out.log" 2>&1 < /dev/null &
pid=$!
disown "$pid"
echo "$pid" > "$data/pid"

# 4. Ready means: an instance can be registered, listed and removed, and the gRPC port answers.
ready() {
  local url=http://127.0.0.1:$port/nacos token=
  local query='namespaceId=ready-probe&serviceName=ready-probe&ip=127.0.0.1&port=1'
  if $auth; then
    token=$(curl -s -m 3 -X POST "$url/v1/auth/users/login" -d 'username=nacos&password=nacos' |
      sed -n 's/.*"accessToken":"\([^"]*\)".*/\1/p')
    query="$query&accessToken=$token"
  fi
  [ "$(curl -s -m 3 -X POST "$url/v1/ns/instance?$query")" = ok ] &&
    curl -s -m 3 "$url/v1/ns/instance/list?$query" | grep -q '"ip":"127.0.0.1"' &&
    [ "$(curl -s -m 3 -X DELETE "$url/v1/ns/instance?$query")" = ok ] &&
    (exec 3<>"/dev/tcp/127.0.0.1/$((port + 1000))") 2>/dev/null
}
if [ -z "${NACOS_NOWAIT:-}" ]; then
  end=$((SECONDS + wait_s))
  until ready; do
    if ! kill -0 "$pid" 2>/dev/null; then
      log "the server ended:"; tail -n 40 "$data/out.log" >&2; rm -f "$data/pid"; exit 1
    fi
    if [ "$SECONDS" -ge "$end" ]; then
      log "not ready after ${wait_s}s; see $data/out.log"; kill "$pid"; rm -f "$data/pid"; exit 1
    fi
    sleep 0.2
  done
  log "Nacos $version ready: http 127.0.0.1:$port, gRPC 127.0.0.1:$((port + 1000)), data $data"
fi
echo "$pid"
