#!/usr/bin/env bash
# Instructions an element of the main paths, counted under valgrind's callgrind: unlike times, they do not depend on
# what else the machine does. Prints a Markdown table; `./instructions.sh [ELEMENTS]`, a million by default.
#
# Valgrind has no AVX-512, so what is counted is what a machine with AVX2 runs. The optimiser must not change between
# two counts that are compared: the compiler's version is printed with them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

elements=${1:-1000000}

command -v valgrind >/dev/null || {
  echo "valgrind is missing: apt-get install valgrind" >&2
  exit 1
}
cargo build --quiet --release -p gradwire-benches --example instructions
program=${CARGO_TARGET_DIR:-target}/release/examples/instructions
mapfile -t codecs < <("$program" list)

# count DIRECTION CODEC: instructions of one run, without preparation and warm-up.
count() {
  local log
  log=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*instructions::measured*' \
    "$program" "$1" "$2" "$elements" 2>&1) || {
    echo "$log" >&2
    return 1
  }
  sed -n 's/.*Collected : \([0-9]*\).*/\1/p' <<<"$log"
}

echo "$(rustc --version), $(valgrind --version), $elements elements of input \`heavy\`."
echo
echo "| codec | encode, instructions/element | decode, instructions/element |"
echo "| --- | --- | --- |"
for codec in "${codecs[@]}"; do
  encode=$(count encode "$codec")
  decode=$(count decode "$codec")
  awk -v codec="$codec" -v encode="$encode" -v decode="$decode" -v elements="$elements" \
    'BEGIN { printf "| `%s` | %.3f | %.3f |\n", codec, encode / elements, decode / elements }'
done
