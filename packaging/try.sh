#!/usr/bin/env bash
# try.sh FOLDER [PYTHON…]: uses the files of a release as somebody does who has this machine and no Rust. With these Pythons, or
# else with those that are found as python3 and python3.11 to python3.14.
set -euo pipefail
dist=$(cd "$1" && pwd)
shift
packaging=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Their real places, before the path gets short. One that is named must start; one that is looked for may be missing or too old.
pythons=()
where='import sys; sys.version_info >= (3, 11) and print(sys.executable)'
for python in "$@"; do pythons+=("$("$python" -c "$where" | grep .)"); done
if (($# == 0)); then
  for python in python3 python3.{11..14}; do pythons+=("$("$python" -c "$where" 2>/dev/null || true)"); done
fi

cd "$scratch"
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)

# Nothing but the system's own programs: no cargo, no rustc.
export PATH=/usr/bin:/bin PYTHONNOUSERSITE=1
! command -v cargo rustc || { echo "Rust is on the system's path" >&2; exit 1; }

try_wheel() {
  local python=$1 venv=$scratch/venv-$2
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check numpy
  # From the folder alone: what the registry has under this name is not meant.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$dist" --only-binary :all: --no-deps gradwire
  "$venv/bin/python" "$packaging/first_frame.py"
  "$venv/bin/python" -m gradwire list >/dev/null
  echo "the wheel works with $("$python" --version)"
}

# try_binary ARCHIVE: one for another machine under QEMU's user mode, if that is installed.
try_binary() {
  local name=${1%.tar.gz} machine version emulator=()
  version=${name#gradwire-trainer-}
  version=${version%-linux}
  machine=${version##*-}
  version=${version%-*}
  if [[ $machine != $(uname -m) ]]; then
    command -v "qemu-$machine" >/dev/null || { echo "no qemu-$machine: the binary for $machine is not tried"; return; }
    emulator=("qemu-$machine")
  fi
  tar -xzf "$dist/$name.tar.gz"
  # Static, so that it also runs where there is no libc at all.
  if ldd "./$name/trainer" 2>/dev/null | grep -q '=>'; then
    echo "the binary for $machine needs shared libraries" >&2
    exit 1
  fi
  [[ $("${emulator[@]}" "./$name/trainer" -V) == "trainer $version" ]]
  [[ -s $name/man/trainer.1 && -s $name/completions/trainer.bash ]]
  "${emulator[@]}" "./$name/trainer" train --codec topk:density=0.01 --steps 5 --workers 2 --out "run-$machine" >/dev/null
  [[ -s run-$machine/summary.json ]]
  echo "the binary for $machine trains"
}

tried=0
for python in "${pythons[@]}"; do
  [[ -n $python ]] || continue
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [[ -e $scratch/venv-$version ]]; then continue; fi
  try_wheel "$python" "$version"
  tried=$((tried + 1))
done
((tried > 0)) || { echo "no Python from 3.11 on was found" >&2; exit 1; }
for archive in "$dist"/gradwire-trainer-*-linux.tar.gz; do try_binary "${archive##*/}"; done
