#!/usr/bin/env bash
# Gets a Redis server for the benchmarks into build/redis. It is unpacked and not installed: the package would
# start a server of its own on the machine, and unpacking needs no root.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
target="$root/build/redis"

if command -v redis-server >/dev/null || [[ -x "$target/redis-server" ]]; then
  exit 0
fi

without() {
  echo "setup: no Redis server ($1): the benchmarks of queues will leave it out" >&2
  exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || without "not a Debian; install redis 6.2 or later"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
# The server, and the libraries it needs that a small machine may not have.
packages=(redis-server redis-tools libjemalloc2 liblzf1 libatomic1)
fetch() { apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}" >/dev/null 2>&1; }

echo "setup: unpacking Debian's redis-server into build/redis"
if ! fetch; then
  ((EUID == 0)) || without "apt-get knows no redis-server; run apt-get update as root"
  apt-get update -qq >/dev/null 2>&1 || without "apt-get update failed"
  fetch || without "apt-get cannot download redis-server"
fi
for package in *.deb; do
  dpkg-deb --extract "$package" unpacked
done
libraries="$(dirname "$(find unpacked -name 'libjemalloc.so.*' | head -n 1)")"
cat >unpacked/redis-server <<END
#!/bin/sh
LD_LIBRARY_PATH="$target/${libraries#unpacked/}" exec "$target/usr/bin/redis-server" "\$@"
END
chmod +x unpacked/redis-server
mkdir -p "$root/build"
rm -rf "$target"
mv unpacked "$target"
"$target/redis-server" --version >/dev/null 2>&1 || { rm -rf "$target"; without "the unpacked one does not start"; }
