#!/usr/bin/env bash
# install.sh PREFIX [PROFILE]: builds libgradwire (by default in the profile release) and puts header, libraries,
# pkg-config file and CMake package below PREFIX. DESTDIR stands in front of it, for packages.
set -euo pipefail
if (($# < 1 || $# > 2)); then sed -n '2,3s/^# //p' "$0" && exit 2; fi
prefix=$1 profile=${2:-release}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
cargo build --locked --manifest-path "$here/Cargo.toml" --target-dir "$target" --profile "$profile"
if [[ $profile == dev ]]; then built=$target/debug; else built=$target/$profile; fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")
IFS=. read -r major minor _ <<<"$version"

root=${DESTDIR:-}$prefix
install -d "$root/include" "$root/lib/pkgconfig" "$root/lib/cmake/gradwire"
install -m 644 "$here/include/gradwire.h" "$root/include"
install -m 644 "$built/libgradwire.a" "$root/lib"
install -m 755 "$built/libgradwire.so" "$root/lib/libgradwire.so.$version"
ln -sf "libgradwire.so.$version" "$root/lib/libgradwire.so.$major"
ln -sf "libgradwire.so.$major" "$root/lib/libgradwire.so"

# fill TEMPLATE FOLDER: the template with this version and prefix, without its suffix.
fill() {
  sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|; s|@MAJOR@|$major|; s|@MINOR@|$minor|" "$here/$1.in" >"$root/lib/$2/$1"
}
fill gradwire.pc pkgconfig
fill gradwire-config.cmake cmake/gradwire
fill gradwire-config-version.cmake cmake/gradwire
