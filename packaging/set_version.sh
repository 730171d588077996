#!/usr/bin/env bash
# set_version.sh VERSION: writes it in every place that states it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1-} =~ ^([0-9]+)\.([0-9]+)\.([0-9]+)$ ]] || { echo "usage: packaging/set_version.sh 1.2.3" >&2; exit 2; }
declare -A part=([MAJOR]=${BASH_REMATCH[1]} [MINOR]=${BASH_REMATCH[2]} [PATCH]=${BASH_REMATCH[3]})
old=$(packaging/versions.sh)
sed -i -E "s/^(version( =|:)|gradwire[a-z-]* = \{ version =) \"${old//./\\.}\"/\1 \"$1\"/" \
  Cargo.toml bindings/{python,c}/Cargo.toml CITATION.cff
for name in "${!part[@]}"; do
  sed -i -E "s/(GW_VERSION_$name(: u32 =)?) [0-9]+/\1 ${part[$name]}/" bindings/c/{src/version.rs,include/gradwire.h}
done
sed -i -E "s/^(set\(PACKAGE_VERSION) \"[^\"]*\"/\1 \"$1\"/" bindings/c/gradwire-config-version.cmake
git ls-files '*Cargo.lock' | while read -r lock; do
  cargo update --quiet --workspace --manifest-path "${lock%lock}toml"
done
packaging/versions.sh "$1"
