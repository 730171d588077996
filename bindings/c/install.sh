#!/usr/bin/env bash
# install.sh PREFIX [PROFILE]: builds libgradwire (by default in the profile release) and puts header, libraries,
# pkg-config file and CMake package below PREFIX, which can be moved as a whole. DESTDIR stands in front of it,
# for packages.
# install.sh PREFIX small TARGET: the header, and the static library without a heap for a target such as
# thumbv7em-none-eabihf.
set -euo pipefail
if (($# < 1 || $# > 3)) || [[ ${2-} == small && $# != 3 ]]; then sed -n '2,6s/^# //p' "$0" && exit 2; fi
prefix=$1 profile=${2:-release}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
root=${DESTDIR:-}$prefix
build=(--locked --manifest-path "$here/Cargo.toml" --target-dir "$target" --profile "$profile")

if [[ $profile == small ]]; then
  # For size the compiler inlines hardly anything: 5. Of 5, 10, 18, 24, 28, 34 and 60, this one gave the least code.
  cargo rustc "${build[@]}" --target "$3" --no-default-features --crate-type staticlib -- -C llvm-args=-inline-threshold=28
  install -d "$root/include" "$root/lib"
  install -m 644 "$here/include/gradwire.h" "$root/include"
  install -m 644 "$target/$3/small/libgradwire.a" "$root/lib"
  exit
fi

cargo build "${build[@]}"
if [[ $profile == dev ]]; then built=$target/debug; else built=$target/$profile; fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")
major=${version%%.*}

install -d "$root/include" "$root/lib/pkgconfig" "$root/share/cmake/gradwire"
install -m 644 "$here/include/gradwire.h" "$root/include"
install -m 644 "$built/libgradwire.a" "$root/lib"
install -m 755 "$built/libgradwire.so" "$root/lib/libgradwire.so.$version"
ln -sf "libgradwire.so.$version" "$root/lib/libgradwire.so.$major"
ln -sf "libgradwire.so.$major" "$root/lib/libgradwire.so"

install -m 644 "$here/gradwire-config.cmake" "$here/gradwire-config-version.cmake" "$root/share/cmake/gradwire"
sed "s|@VERSION@|$version|" "$here/gradwire.pc.in" >"$root/lib/pkgconfig/gradwire.pc"
