#!/bin/sh
# Fills fuzz/corpus from tests/golden and tests/bad. The corpus itself is not kept.
set -eu
cd "$(dirname "$0")"
tests=../tests

seed() { # TARGET FOLDER...
    target=$1
    shift
    mkdir -p "corpus/$target"
    for folder in "$@"; do
        for frame in "$tests/$folder"/*.bin; do
            cp "$frame" "corpus/$target/$(basename "$folder")-$(basename "$frame")"
        done
    done
}

# Frames as they are: these targets take a whole message.
seed decode_any golden golden/voids bad
seed decode_then_accumulate golden bad

# Bodies behind two bytes of length, and gradients as raw floats: any bytes do, short ones first.
for target in levels_and_indices bits_and_entropy scalar_vs_simd packets roundtrip_topk roundtrip_qsgd roundtrip_listed \
    rounds_listed c_interface; do
    mkdir -p "corpus/$target"
    for frame in "$tests"/golden/*.bin; do
        tail -c +25 "$frame" | head -c 600 >"corpus/$target/$(basename "$frame")"
    done
done

# The spellings of the golden frames.
mkdir -p corpus/spec_parse
sed -n 's/.*file=\([^ ]*\).* codec=\([^ ]*\).*/\1 \2/p' "$tests/golden/manifest.txt" | while read -r file spelling; do
    printf '%s' "$spelling" >"corpus/spec_parse/$file"
done

# A hello from rank 1 to rank 0 without terms, after a preface that the target adds.
mkdir -p corpus/tcp_greeting
printf '\002\007\014\000\000\000\000\000\000\000\001\000\000\000\000\000\000\000\000\000\000\000' >corpus/tcp_greeting/hello
