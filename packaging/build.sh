#!/usr/bin/env bash
# build.sh FOLDER: makes the files of a release in FOLDER, which is empty or not there: wheels, sdist, static binaries of the
# trainer with its manual pages and completions, what they were made of, and checksums. The crates are made by Cargo.
#
# On Linux x86-64, with Rust and Python. Zig links, so that the machine's own libraries do not matter.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
[[ -z $(ls -A "$out") ]] || { echo "$1 is not empty" >&2; exit 1; }
cd "$root"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
version=$(packaging/versions.sh)
# shellcheck source=packaging/venv.sh
. packaging/venv.sh
export PATH=$venv/bin:$PATH PYO3_PYTHON=$venv/bin/python

wheel() {
  rustup target add "$1-unknown-linux-gnu"
  maturin build --release --locked --zig --compatibility manylinux_2_28 --target "$1-unknown-linux-gnu" \
    -m bindings/python/Cargo.toml --out "$out"
}

# binary MACHINE: one archive with one folder.
binary() {
  local target=$1-unknown-linux-musl name=gradwire-trainer-$version-$1-linux
  local folder=$CARGO_TARGET_DIR/release-archive/$name
  rustup target add "$target"
  cargo zigbuild --release --locked -p gradwire-trainer --target "$target"
  rm -rf "$folder"
  mkdir -p "$folder"
  cp "$CARGO_TARGET_DIR/$target/release/trainer" README.md LICENSE-MIT LICENSE-APACHE CHANGELOG.md "$folder"
  "$venv/bin/python" -m ziglang objcopy --strip-all "$folder/trainer" "$folder/stripped" && mv "$folder/stripped" "$folder/trainer"
  chmod 755 "$folder/trainer"
  manual "$folder"
  # The same files make the same archive.
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -C "${folder%/*}" -c "$name" |
    gzip -n9 >"$out/$name.tar.gz"
}

# manual FOLDER: made by the binary of this machine, also for the others.
manual() {
  local trainer=$CARGO_TARGET_DIR/x86_64-unknown-linux-musl/release/trainer shell
  mkdir -p "$1/man" "$1/completions"
  "$trainer" man "$1/man"
  for shell in bash zsh fish; do "$trainer" completions "$shell" >"$1/completions/trainer.$shell"; done
}

# What the binary and the wheel were made of.
materials() {
  command -v cargo-cyclonedx >/dev/null || env -u CARGO_TARGET_DIR cargo install --locked cargo-cyclonedx --version 0.5.9
  cargo cyclonedx --format json --target x86_64-unknown-linux-musl --manifest-path trainer/Cargo.toml \
    --override-filename materials
  mv trainer/materials.json "$out/gradwire-trainer-$version.cdx.json"
  rm -f ./*/materials.json ./*/*/materials.json
  cargo cyclonedx --format json --manifest-path bindings/python/Cargo.toml --override-filename materials
  mv bindings/python/materials.json "$out/gradwire-python-$version.cdx.json"
  rm -f ./*/materials.json
}

wheel x86_64
wheel aarch64
maturin sdist -m bindings/python/Cargo.toml --out "$out"
binary x86_64
binary aarch64
materials
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
