#!/usr/bin/env bash
# Gets a PostgreSQL server for the tests into build/postgres. It is unpacked and not installed: the package
# would start a server of its own on the machine, and unpacking needs no root.
set -euo pipefail
shopt -s nullglob

root="$(cd "$(dirname "$0")/.." && pwd)"
target="$root/build/postgres"

installed=(/usr/lib/postgresql/*/bin/initdb)
if command -v initdb >/dev/null || ((${#installed[@]} > 0)) || [[ -x "$target/initdb" ]]; then
  exit 0
fi

without() {
  echo "setup: no PostgreSQL server ($1): the test of transactions over Hawser and PostgreSQL will be skipped" >&2
  exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  without "not a Debian; install PostgreSQL 13 or later"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# The server, and the libraries it needs that this machine has not; those of its compiler for queries are large,
# and only loaded when it is used.
wanted() {
  local server
  server="$(apt-cache depends postgresql 2>/dev/null | sed -n 's/^ *Depends: \(postgresql-[0-9]*\)$/\1/p')"
  [[ -n "$server" ]] || return 1
  echo "$server"
  apt-get install --simulate --no-install-recommends "$server" 2>/dev/null |
    sed -n 's/^Inst \(lib[^ ]*\) .*/\1/p' | grep -Ev '^lib(llvm|z3|perl|common-sense|json|types)|-dev$' || true
}
fetch() {
  local packages
  packages="$(wanted)" || return 1
  # shellcheck disable=SC2086
  apt-get download -qq -o APT::Sandbox::User=root $packages >/dev/null 2>&1
}

echo "setup: unpacking Debian's PostgreSQL into build/postgres"
if ! fetch; then
  ((EUID == 0)) || without "apt-get knows no postgresql; run apt-get update as root"
  apt-get update -qq >/dev/null 2>&1 || without "apt-get update failed"
  fetch || without "apt-get cannot download postgresql"
fi
for package in *.deb; do
  dpkg-deb --extract "$package" unpacked
done
programs=(unpacked/usr/lib/postgresql/*/bin)
libraries="$target/usr/lib/$(uname -m)-linux-gnu:$target/lib/$(uname -m)-linux-gnu"
for program in initdb postgres; do
  cat >"unpacked/$program" <<END
#!/bin/sh
LD_LIBRARY_PATH="$libraries" exec "$target/${programs[0]#unpacked/}/$program" "\$@"
END
  chmod +x "unpacked/$program"
done
mkdir -p "$root/build"
rm -rf "$target"
mv unpacked "$target"
"$target/postgres" --version >/dev/null 2>&1 || { rm -rf "$target"; without "the unpacked one does not start"; }
