#!/usr/bin/env bash
# versions.sh [VERSION]: prints the version of gradwire, if all places that state it agree (and agree with VERSION).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stated() {
  awk '/^\[/ { section = $0 } section == "[workspace.package]" && /^version =/ { print "Cargo.toml: " $3 }' Cargo.toml
  sed -nE 's/^(gradwire[a-z-]*) = \{ version = ("[^"]*").*/Cargo.toml, \1: \2/p' Cargo.toml
  awk '/^\[/ { section = $0 } section == "[package]" && /^version =/ { print "bindings/python/Cargo.toml: " $3 }' \
    bindings/python/Cargo.toml
  awk '/^\[/ { section = $0 } section == "[package]" && /^version =/ { print "bindings/c/Cargo.toml: " $3 }' \
    bindings/c/Cargo.toml
  sed -nE 's/^version: *("[^"]*")/CITATION.cff: \1/p' CITATION.cff
  sed -nE 's/^set\(PACKAGE_VERSION ("[^"]*")\)/gradwire-config-version.cmake: \1/p' bindings/c/gradwire-config-version.cmake
  git ls-files '*Cargo.lock' | while read -r lock; do
    awk -v lock="$lock" '/^name = "gradwire(-transports|-lgc|-trainer|-python|-c)?"$/ { getline version; sub(/.* /, "", version); print lock ", " $3 ": " version }' "$lock"
  done
}

places=$(stated)
(($(grep -vc lock <<<"$places") == 8)) || { echo "8 places beside lock files state a version; found:" && echo "$places"; exit 1; } >&2
versions=$(sed -E 's/.*: "(.*)"$/\1/' <<<"$places" | sort -u)
if (($(wc -l <<<"$versions") > 1)); then
  { echo "the versions differ:" && echo "$places"; } >&2
  exit 1
fi
if [[ ${1-$versions} != "$versions" ]]; then
  echo "the packages have version $versions, not $1" >&2
  exit 1
fi
echo "$versions"
