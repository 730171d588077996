#!/usr/bin/env bash
# publish.sh [FLAGS OF CARGO PUBLISH]: publishes those of the crates that crates.io does not have in this version, so that it
# can be repeated. They are not compiled here, beside the token: `./ci.sh package` did that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(packaging/versions.sh)
missing=()
for name in gradwire gradwire-transports gradwire-lgc gradwire-trainer; do
  if cargo info --quiet --registry crates-io "$name@$version" >/dev/null 2>&1; then
    echo "$name $version is there"
  else
    missing+=(-p "$name")
  fi
done
# Cargo sends them in the order of their dependencies, and waits for each.
((${#missing[@]} == 0)) || cargo publish --locked --no-verify "$@" "${missing[@]}"
