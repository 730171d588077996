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
  cargo zigbuild --release --locked -p gradwire-trainer --target "$target" \
    --config 'profile.release.package.gradwire-trainer.strip = "symbols"'
  rm -rf "$folder"
  mkdir -p "$folder"
  cp "$CARGO_TARGET_DIR/$target/release/trainer" README.md LICENSE-MIT LICENSE-APACHE CHANGELOG.md "$folder"
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

# materials NAME FOLDER TARGET: what the package in FOLDER is made of. The tool leaves a bill in every member of a workspace.
materials() {
  local bill=$out/gradwire-$1-$version.cdx.json
  command -v cargo-cyclonedx >/dev/null || env -u CARGO_TARGET_DIR cargo install --locked cargo-cyclonedx --version 0.5.9
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$3" \
    --manifest-path "$2/Cargo.toml" --override-filename materials
  mv "$2/materials.json" "$bill"
  git clean --quiet --force -- '*/materials.json'
  cargo tree --locked --manifest-path "$2/Cargo.toml" --target "$3" --edges normal,build --prefix none |
    "$venv/bin/python" packaging/materials.py "$bill"
}

wheel x86_64
wheel aarch64
maturin sdist -m bindings/python/Cargo.toml --out "$out"
binary x86_64
binary aarch64
materials trainer trainer x86_64-unknown-linux-musl
materials python bindings/python x86_64-unknown-linux-gnu
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
