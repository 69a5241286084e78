#!/usr/bin/env bash
# Gets an etcd server for the tests into build/etcd. It is unpacked and not installed: the package would
# start a server of its own on the machine, and unpacking needs no root.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
target="$root/build/etcd"

if command -v etcd >/dev/null || [[ -x "$target/usr/bin/etcd" ]]; then
  exit 0
fi

without() {
  echo "setup: no etcd server ($1): the tests of the metadata store in etcd will be skipped" >&2
  exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || without "not a Debian; install etcd 3.4 or later"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fetch() { apt-get download -qq -o APT::Sandbox::User=root etcd-server >/dev/null 2>&1; }

echo "setup: unpacking Debian's etcd-server into build/etcd"
if ! fetch; then
  ((EUID == 0)) || without "apt-get knows no etcd-server; run apt-get update as root"
  apt-get update -qq >/dev/null 2>&1 || without "apt-get update failed"
  fetch || without "apt-get cannot download etcd-server"
fi
dpkg-deb --extract etcd-server_*.deb unpacked
mkdir -p "$root/build"
rm -rf "$target"
mv unpacked "$target"
