#!/usr/bin/env bash
# Installs what pip cannot: a C++20 compiler, Python's headers and venv (needed), valgrind, iproute2, Java 17 and
# Chromium (wished for).
# Usage: install_system_packages.sh PYTHON
set -euo pipefail

python="${1:-python3}"
version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"

has_compiler() { command -v "${CXX:-c++}" >/dev/null; }
has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
has_headers() {
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))'
}
has_valgrind() { command -v valgrind >/dev/null; }
has_ip() { command -v ip >/dev/null; }
has_chromium() { command -v chromium >/dev/null; }
has_java() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" told
  told="$("$java" -version 2>&1)" || return 1
  # "17.0.15" is Java 17, "1.8.0_392" is Java 8.
  [[ "$told" =~ version\ \"([0-9]+) ]] && ((BASH_REMATCH[1] >= 17))
}

missing() {
  has_compiler || echo g++
  has_venv || echo "python$version-venv"
  has_headers || echo "python$version-dev"
  has_valgrind || echo valgrind
  has_ip || echo iproute2
  has_java || echo openjdk-17-jre-headless
  has_chromium || echo chromium
}

mapfile -t packages < <(missing)
if ((${#packages[@]} == 0)); then
  exit 0
fi

if command -v apt-get >/dev/null && ((EUID == 0)); then
  echo "setup: installing with apt-get: ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >/dev/null || echo "setup: apt-get update failed; trying what is known already" >&2
  for package in "${packages[@]}"; do
    apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
      echo "setup: apt-get could not install $package" >&2
  done
fi

has_valgrind || echo "setup: valgrind is not installed: the tests that count instructions will be skipped" >&2
has_ip || echo "setup: iproute2 is not installed: the tests that cut networks will be skipped" >&2
has_java || echo "setup: there is no Java 17 or newer: the tests of Spark will be skipped" >&2
has_chromium || echo "setup: Chromium is not installed: the tests that lay out pages will be skipped" >&2
mapfile -t packages < <(missing | grep -Ev '^(valgrind|iproute2|openjdk-17-jre-headless|chromium)$' || true)
if ((${#packages[@]} > 0)); then
  echo "setup: Hawser cannot be built without these packages (Debian's names): ${packages[*]}" >&2
  exit 1
fi
