#!/usr/bin/env bash
# Every check of this repository, one function each. `./ci.sh help` says how to call it.
#
# Trees of dependencies are compiled as rarely as they can be: whatever needs the tensor library (lints, documentation,
# the trainer's tests, the quick start) uses the release profile, and only the small packages are also tested in debug,
# with overflow checks. All checks share one target folder, also those of the packages outside of the workspace.
set -euo pipefail

ordinary=(fmt shell workflows words documents tree layers clippy doc features test no_std firmware msrv platforms package format quickstart study mpi zmq python c)
nightly=(fewer-features bench-smoke simulate lab metrics miri deny mpich arch platforms-trainer streams instructions fuzz bench-full semver cargo-c release)
declare -A purpose=(
  [fmt]="every package is formatted by rustfmt"
  [shell]="shellcheck has nothing to say about the scripts"
  [workflows]="zizmor and jactionlint have nothing to say about the workflows; each check is in one job of theirs; versions agree"
  [words]="the text holds no machine paths, no unfinished work and no issue numbers"
  [documents]="links lead somewhere, and prose and comments keep the length of line that rustfmt.toml states"
  [tree]="the codec crate depends on its four libraries alone; Cargo.lock is up to date"
  [layers]="imports point the way that ARCHITECTURE.md states, and circles of files stay small"
  [clippy]="clippy finds nothing: workspace, all targets, fuzz targets, and the codec crate and the transports with fewer features"
  [doc]="the documentation builds without warnings, with the features that docs.rs uses"
  [features]="the codec crate's own tests pass without the standard library"
  [test]="all tests pass: small packages in debug, the trainer in release"
  [no_std]="the codec crate compiles for bare metal and for wasm, and the bare-metal example links"
  [firmware]="a Cortex-M4F under QEMU makes and reads the frames that this machine makes, from Rust and from C, in the memory that docs/microcontrollers.md states"
  [msrv]="each package builds with the oldest compiler that it declares"
  [platforms]="the codec crate and the transports compile for Windows (GNU) and for macOS (Apple silicon); nothing of it is run"
  [package]="the four published packages compile from their archives, which hold licences and README; a new project uses them"
  [format]="the decoder written from FORMAT.md alone reads every golden frame, and codecs written from it make every golden payload; FORMAT.md, decoder and bad frames have the numbers of format.json"
  [study]="every cell of the studies runs, small, and has a row in its table; advice for 240 set-ups and for up to 256 workers is what the documentation says"
  [quickstart]="cargo run --release succeeds in time and writes a report that needs no network"
  [mpi]="under Open MPI: 2, 3 and 4 ranks keep the contract, train as threads do, and end together on every fault"
  [zmq]="ranks over ZeroMQ, with CURVE: the contract, hostile peers, connections that break, workers that come and go; lints, docs, oldest compiler"
  [python]="the Python package: lints, types and stubs, tests and docstrings on the wheel for manylinux_2_28, command line; DDP with torch"
  [c]="libgradwire: lints, header and symbols are those of the code, C99 and C++17 programs under sanitizers and valgrind, hostile calls, installation"
  [fewer-features]="the codec crate's own tests pass with default features, with a heap alone, and without"
  [bench-smoke]="every bench runs once"
  [simulate]="a million random schedules of every route of an exchange keep the rules of tests/simulator"
  [lab]="on hosts of their own, over links that are slow, far, lossy or cut: the contract over MPI, TCP and ZeroMQ, hostile peers, a message above 4 GiB, a short soak, hooks of torch"
  [metrics]="with the feature metrics: lints, and the page for Prometheus agrees with what runs write down"
  [miri]="Miri finds no undefined behaviour in the kernels, AVX2 loops included, and in the index coders"
  [deny]="licences, sources and bans of the dependencies are as deny.toml says; advisories where reachable"
  [mpich]="the contract, every fault, a payload above 2 GiB and training under MPICH as well"
  [arch]="the codec crate's tests and golden frames pass on aarch64, i686 and big-endian powerpc64, emulated"
  [platforms-trainer]="the trainer's own code compiles for Windows and macOS; not the C of its allocator, for which there is no compiler"
  [streams]="dieharder finds nothing in single streams of draws, nor in 65,536 of consecutive keys interleaved"
  [instructions]="no main path takes 1 % more instructions than benches/results/instructions.md records"
  [fuzz]="every fuzz target runs for minutes from the golden frames; or for FUZZ_SECONDS"
  [bench-full]="all benches, measured"
  [semver]="since the last release, interfaces changed only as its number allows, and its golden and bad frames are all there"
  [cargo-c]="what cargo-c installs of libgradwire is found by pkg-config and CMake, as what install.sh installs is"
  [release]="the files of a release are made, and work for somebody without Rust: wheels, sdist, static binaries, checksums"
)

published=(gradwire gradwire-transports gradwire-lgc gradwire-trainer)
# The checks of both networks take the same packages and features, so that the trainer is compiled once.
networks=(-p gradwire-transports -p gradwire-trainer)
networks+=(--features "gradwire-transports/mpi,gradwire-transports/zmq,gradwire-transports/conformance,gradwire-trainer/mpi,gradwire-trainer/zmq")
fuzz_seconds=${FUZZ_SECONDS:-180}
quickstart_seconds=${QUICKSTART_SECONDS:-90}
study_seconds=${STUDY_SECONDS:-300}
mpi_seconds=${MPI_SECONDS:-900}
zmq_seconds=${ZMQ_SECONDS:-300}
lab_seconds=${LAB_SECONDS:-1800}
torch_seconds=${TORCH_SECONDS:-1200}
torch_gigabytes=10

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$root"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
# Panics say where they are without it.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_BENCH_DEBUG=0
export CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never
# To optimise once more where a crate's parts are joined takes a quarter of the time of compiling.
export CARGO_PROFILE_RELEASE_LTO=off
logs=$CARGO_TARGET_DIR/ci
notes=$logs/notes

# Builds what others get, as they get it: size and speed count.
as_released() { unset CARGO_PROFILE_RELEASE_LTO; }

# --- the checks ------------------------------------------------------------------------------------------------------

check_fmt() {
  need_component rustfmt
  cargo fmt --all --check -- --color never
  cargo fmt --manifest-path fuzz/Cargo.toml --check -- --color never
  cargo fmt --manifest-path tests/no_std/Cargo.toml --check -- --color never
  cargo fmt --manifest-path tests/firmware/Cargo.toml --check -- --color never
  cargo fmt --manifest-path bindings/python/Cargo.toml --check -- --color never
  cargo fmt --manifest-path bindings/c/Cargo.toml --check -- --color never
}

check_shell() {
  need_command shellcheck shellcheck
  local scripts
  mapfile -t scripts < <(git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run)
  shellcheck "${scripts[@]}"
}

# GitHub alone can run them; what can be checked here is what they may do, and that no check is forgotten.
check_workflows() {
  need_command python3 python3 python3-venv
  need_command shellcheck shellcheck
  packaging/versions.sh
  local file
  jobs_hold_all_of checks "${ordinary[@]}"
  jobs_hold_all_of nightly "${nightly[@]}"
  for file in .github/workflows/*.yml; do ! grep -nE 'uses: [^#]*@(v[0-9]|main|master)' "$file" || fail "$file: pin the commit"; done
  # shellcheck source=packaging/venv.sh
  . packaging/venv.sh
  "$venv/bin/zizmor" --offline --no-progress .github
  "$venv/bin/jactionlint" --no-color --strict-exit
}

# jobs_hold_all_of WORKFLOW CHECKS…: each of them once among the words of its matrix.
jobs_hold_all_of() {
  local file=.github/workflows/$1.yml listed
  shift
  listed=$(sed -nE '/^ *checks:/,/^ *runs-on:/ { s/^ *(- |checks: \[)([a-z_ ,-]+)\]?$/\2/p }' "$file" | tr -s ', ' '\n' | sort)
  diff <(printf '%s\n' "$@" | sort) <(sed '/^$/d' <<<"$listed") || fail "$file has other checks than ci.sh (<: not in it)"
}

# Brackets in the patterns keep this file from matching itself.
check_words() {
  need_command git git
  forbid 'machine path' '(^|[^[:alnum:]_.~-])/(tm[p]|roo[t]|hom[e]|User[s]|wor[k])/'
  forbid 'unfinished work' '(^|[^[:alnum:]_])(TOD[O]|FIXM[E]|todo[!]|unimplemented[!]|dbg[!])'
  forbid 'issue number' '([Ii]ssu[e]|[Pp]ull reques[t]|P[R]) ?#?[0-9]+([^[:alnum:].]|$)'
}

check_documents() {
  need_command git git
  need_command python3 python3
  python3 tests/documents/check.py --self-test
  python3 tests/documents/check.py
}

check_tree() {
  cargo tree --locked -p gradwire -e normal
  local direct
  direct=$(cargo tree -p gradwire -e normal --target all --depth 1 --prefix depth | sed -n 's/^1\([^ ]*\) .*/\1/p' | sort | xargs)
  [[ $direct == "bitvec half libm rand_core" ]] || fail "the codec crate depends on: $direct"
}

check_layers() {
  need_c_compiler
  cargo test -p gradwire-layers
  cargo run -q -p gradwire-layers
  # Tests may use threads.
  local file
  for file in transports/src/{exchange,exchange/*,gossip}/*.rs; do
    if sed '/^#\[cfg(test)\]/,$d' "$file" | grep -vE '^ *//' | grep -E 'std::(net|thread)|Instant|crate::transport'; then
      fail "$file does I/O: exchange and gossip are given messages and the time"
    fi
  done
}

check_clippy() {
  need_component clippy
  need_c_compiler
  # Apart, as benches turn on features with which the tensor library would be compiled once more.
  cargo clippy --release --workspace --exclude gradwire-trainer --exclude own-codec --all-targets -- -D warnings
  cargo clippy --release -p gradwire-trainer -p own-codec --all-targets -- -D warnings
  cargo clippy --release -p gradwire --all-targets --no-default-features -- -D warnings
  cargo clippy --release -p gradwire --all-targets --no-default-features --features full -- -D warnings
  cargo clippy --release -p gradwire --all-targets --no-default-features --features alloc -- -D warnings
  cargo clippy --release -p gradwire --all-targets -- -D warnings
  need_command c++ g++
  RUSTFLAGS="--cfg fuzzing" cargo clippy --release --manifest-path fuzz/Cargo.toml -- -D warnings
  # As libgradwire builds it. Its tests turn on the features that they need, so this is the library alone.
  cargo clippy --release -p gradwire-transports --lib --no-default-features -- -D warnings
}

# The features are those of each package's [package.metadata.docs.rs].
check_doc() {
  need_c_compiler
  RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --lib -p gradwire --all-features
  RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --lib -p gradwire-transports --features conformance
  RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --lib -p gradwire-lgc -p gradwire-trainer
}

check_features() {
  need_c_compiler
  # With the standard library they run in `test`.
  cargo test -p gradwire --no-default-features --features full
  cargo run -p gradwire --no-default-features --example no_heap
  cargo run -p gradwire --example lossy_link
}

check_fewer_features() {
  need_c_compiler
  cargo test -p gradwire --no-default-features
  cargo test -p gradwire --no-default-features --features alloc
  cargo test -p gradwire
}

check_test() {
  need_c_compiler
  local failed=0
  cargo test --no-fail-fast -p gradwire -p gradwire-transports -p gradwire-tests \
    --features gradwire-transports/conformance || failed=1
  # Built with the tests. Asked for by itself, each would be compiled with other features.
  local example
  for example in training_loop own_codec own_network; do "$CARGO_TARGET_DIR/debug/examples/$example" || failed=1; done
  cargo test --no-fail-fast --release -p gradwire-lgc -p gradwire-trainer -p own-codec || failed=1
  ((failed == 0)) || fail "some tests failed"
}

check_no_std() {
  as_released
  local target
  for target in thumbv7em-none-eabihf wasm32-unknown-unknown; do
    need_target "$target"
    cargo check -p gradwire --no-default-features --target "$target"
    cargo check -p gradwire --no-default-features --features full --target "$target"
    cargo check -p gradwire --no-default-features --features alloc --target "$target"
  done
  cargo build --release --manifest-path tests/no_std/Cargo.toml --target thumbv7em-none-eabihf
}

check_firmware() {
  as_released
  need_command qemu-system-arm qemu-system-arm
  need_command size binutils
  need_target thumbv7em-none-eabihf
  same_frames_on_device full 30
  same_frames_on_device small 6
  firmware_cargo build --features device --bin node
  local sections code constants ram
  # Without the vector table, whose size is the chip's.
  sections=$(size -A "$CARGO_TARGET_DIR/thumbv7em-none-eabihf/release/node")
  code=$(awk '$1 == ".text" { print $2 }' <<<"$sections")
  constants=$(awk '$1 ~ /^\.(rodata|data)$/ { sum += $2 } END { print sum + 0 }' <<<"$sections")
  ram=$(awk '$1 == "memory:" { sum += $3 } END { print sum + 0 }' "$logs/device-small.txt")
  echo "encoder and decoder take $code bytes of code, $constants of constants, and $ram bytes of RAM beside the caller's buffers"
  ((0 < code && code <= 24 * 1024)) || fail "not within 24 KiB of code"
  ((0 < ram && ram <= 4 * 1024)) || fail "not within 4 KiB of RAM"
  same_frames_from_c
}

check_msrv() {
  need_c_compiler
  check_with_oldest_compiler core gradwire --all-features
  check_with_oldest_compiler transports gradwire-transports --features conformance
  check_with_oldest_compiler lgc gradwire-lgc
  check_with_oldest_compiler trainer gradwire-trainer
  check_with_oldest_compiler bindings/c gradwire-c --locked --manifest-path bindings/c/Cargo.toml
}

# Cargo takes several targets at once, and compiles what runs on this machine once for both.
check_platforms() {
  cargo_check_elsewhere -p gradwire -p gradwire-transports --features gradwire-transports/conformance
}

# A check links nothing, so a program that does nothing stands in for the compiler and the archiver of the other systems.
check_platforms_trainer() {
  local nothing
  nothing=$(command -v true)
  CC=$nothing AR=$nothing cargo_check_elsewhere -p gradwire-trainer
}

check_package() {
  need_c_compiler
  need_command git git
  local flags=(--locked) selected=() name
  for name in "${published[@]}"; do selected+=(-p "$name"); done
  if [[ -n $(git status --porcelain) ]]; then
    flags+=(--allow-dirty)
    note "packaged with --allow-dirty: the working tree differs from the last commit"
  fi
  rm -rf "$CARGO_TARGET_DIR/package"
  # Without cargo's own build of the archives, which is in a profile that no other check has.
  cargo package --no-verify "${flags[@]}" "${selected[@]}"
  for name in "${published[@]}"; do archive_is_complete "$name"; done
  new_project_uses_archives
}

check_format() {
  need_command python3 python3
  python3 tests/format/run.py
}

check_bench_smoke() {
  need_c_compiler
  cargo bench -p gradwire-benches -- --test
}

check_quickstart() {
  need_c_compiler
  cargo build --release
  local folder started report
  folder=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name is wanted as it is now
  trap "rm -rf '$folder'" EXIT
  started=$SECONDS
  (cd "$folder" && timeout "$quickstart_seconds" cargo run --release --manifest-path "$root/Cargo.toml") ||
    fail "the quick start failed, or took longer than $quickstart_seconds s"
  echo "the quick start took $((SECONDS - started)) s"
  report=$(find "$folder" -name report.html -size +0)
  [[ -n $report ]] || fail "the quick start wrote no report.html"
  # An SVG name space is a name; nothing loads it.
  ! grep -nEi "(src|srcset|href|action|data|poster)=[\"']?(https?:)?//|url\\([\"']?(https?:)?//|@import|fetch\\(|XMLHttpRequest|WebSocket" "$report" ||
    fail "the report refers to something remote"
}

# Whether the page has each line of standard input.
has_rows() {
  local row
  while IFS= read -r row; do
    grep -qxF "$row" "$1" || fail "$1 has no such row: $row"
  done
}

# Whether the study runs, not what it finds: see benches/study.
check_study() {
  need_c_compiler
  need_command python3 python3
  cargo build --release
  local folder study=$root/benches/study/study.py trainer=$CARGO_TARGET_DIR/release/trainer rows
  folder=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name is wanted as it is now
  trap "rm -rf '$folder'" EXIT
  timeout -k 5 "$study_seconds" "$study" "$trainer" "$folder" --quick
  "$study" "$trainer" "$folder" --table
  rows=$("$study" "$trainer" "$folder" --table | grep -c '×')
  [[ $rows == 34 ]] || fail "the table has $rows rows, expected one for each of the 34 cells"
  study=$root/benches/study/adaptive.py
  timeout -k 5 "$study_seconds" "$study" "$trainer" "$folder/adaptive" --quick
  "$study" "$trainer" "$folder/adaptive" --table
  rows=$("$study" "$trainer" "$folder/adaptive" --table | grep -cE '^\| (resnet20|lstm)')
  [[ $rows == 16 ]] || fail "the table has $rows rows, expected one for each of the 16 cells"
  study=$root/benches/study/optimizers.py
  timeout -k 5 "$study_seconds" "$study" "$trainer" "$folder/optimizers" --quick
  "$study" "$trainer" "$folder/optimizers" --table
  rows=$("$study" "$trainer" "$folder/optimizers" --table | grep -c ' ×, ')
  [[ $rows == 39 ]] || fail "the tables have $rows rows, expected one for each of 30 methods, 4 with sixteen workers, and 5 of images"
  mkdir "$folder/tuned"
  tar -C "$folder/tuned" -xf benches/results/optimizers.tar.xz
  "$study" "$trainer" "$folder/tuned" --table | grep '^|' > "$folder/tuned.md"
  has_rows docs/optimizers.md < "$folder/tuned.md"
  benches/study/adamw/report.py benches/results/adamw.jsonl | grep '^|' > "$folder/adamw.md"
  has_rows docs/optimizers.md < "$folder/adamw.md"
  study=$root/benches/study/longer.py
  timeout -k 5 "$study_seconds" "$study" "$trainer" "$folder/longer" "$folder/longer.jsonl" --quick
  rows=$(wc -l < "$folder/longer.jsonl")
  [[ $rows == 44 ]] || fail "the record has $rows lines, expected one for each of the 44 runs"
  "$study" --table benches/results/longer.jsonl | grep '^|' > "$folder/longer.md"
  has_rows docs/methods.md < "$folder/longer.md"
  study=$root/benches/study/methods.py
  # Refuses a codec of the registry that has no method there.
  timeout -k 5 "$study_seconds" "$study" "$trainer" "$folder/methods" --quick
  rows=$("$study" "$trainer" "$folder/methods" --table | grep -cE '\| (gather|linear|gossip) \| [^|]* \| [0-9]')
  [[ $rows == 86 ]] || fail "the table has $rows rows, expected one for each of the 86 methods"
  mkdir "$folder/record"
  tar -C "$folder/record" -xf benches/results/methods.tar.xz
  cp docs/methods.md "$folder/methods.md"
  "$study" "$trainer" "$folder/record" --page "$folder/methods.md"
  diff docs/methods.md "$folder/methods.md" || fail "docs/methods.md is not what its record says: methods.py --page writes it"
  # The costs are recorded ones, so that the answers are those of the documentation.
  benches/utility/utility.py "$trainer" benches/utility/measured > "$folder/utility.md"
  has_rows docs/advice.md < "$folder/utility.md"
  benches/utility/workers.py "$trainer" benches/utility/measured > "$folder/workers.md"
  has_rows docs/choosing-a-codec.md < "$folder/workers.md"
}

# In the release profile throughout: the trainer's tensor library is compiled for it already, and bindgen only once then.
check_mpi() {
  need_networks
  need_command mpirun openmpi-bin
  need_component clippy
  cargo clippy --release --all-targets "${networks[@]}" -- -D warnings
  cargo test --release --no-run --test mpi "${networks[@]}"
  timeout -k 3 "$mpi_seconds" cargo test --release --lib mpi -p gradwire-transports --features mpi
  timeout -k 3 "$mpi_seconds" cargo test --release --no-fail-fast --test mpi "${networks[@]}" -- --nocapture
}

# With the system's libzmq, which .cargo/config.toml names. One of the tests asserts that it has CURVE.
check_zmq() {
  need_networks
  need_component clippy
  cargo test -p gradwire-transports --features zmq --no-run --lib --test zmq --test zmq_memory --example parameter_server
  timeout -k 5 "$zmq_seconds" cargo test -p gradwire-transports --features zmq --lib zmq
  timeout -k 5 "$zmq_seconds" cargo test -p gradwire-transports --features zmq --test zmq --test zmq_memory
  timeout -k 5 "$zmq_seconds" cargo run -p gradwire-transports --features zmq --example parameter_server
  RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --lib -p gradwire-transports --features conformance,zmq
  check_with_oldest_compiler transports gradwire-transports --features zmq
  cargo clippy --release --all-targets "${networks[@]}" -- -D warnings
  cargo test --release --test remote "${networks[@]}" --no-run
  timeout -k 5 "$zmq_seconds" cargo test --release --test remote "${networks[@]}"
}

check_simulate() {
  need_c_compiler
  SIMULATE_SCHEDULES=1000000 cargo test --release -p gradwire-transports --test simulator
}

# Namespaces of the kernel for hosts; when the first process of the lab ends, however it does, nothing is left of it.
check_lab() {
  as_released
  ((EUID == 0)) || fail "the lab makes network namespaces, for which it needs root"
  need_c_compiler
  need_command mpicc libopenmpi-dev openmpi-bin libclang-dev
  need_command mpirun openmpi-bin
  need_libclang
  need_library zmq libzmq3-dev
  need_command python3 python3
  need_command ip iproute2
  need_command nft nftables
  need_command sysctl procps
  need_command ethtool ethtool
  need_command pgrep procps
  cargo test --release -p gradwire-transports --test tcp -- --ignored above_4_gib
  timeout -k 5 "$lab_seconds" tests/lab/run.py
  check_torch_lab
}

# Whether the lab measures PyTorch's hooks and gradwire's, not how fast they are.
check_torch_lab() {
  local wheels=$logs/torch-lab
  rm -rf "$wheels"
  python_venv bindings/python/requirements-dev.txt
  PYO3_PYTHON=$venv/bin/python "$venv/bin/maturin" build --release --locked -m bindings/python/Cargo.toml --out "$wheels"
  install_beside_torch "$wheels"
  timeout -k 5 "$torch_seconds" "$venv/bin/python" tests/lab/torch_lab.py "$wheels/quick.jsonl" --quick
  python3 tests/lab/torch_report.py "$wheels/quick.jsonl" "$wheels/quick.md" --busy
}

# The wheel that is tested is the one that would be published. What is built needs no compiler of this machine but Rust's:
# zig links, against old enough libraries.
check_python() {
  as_released
  need_component clippy
  need_command python3 python3 python3-venv
  python_venv bindings/python/requirements-dev.txt
  local scratch package=$root/bindings/python
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name is wanted as it is now
  trap "rm -rf '$scratch'" EXIT
  export PYO3_PYTHON=$venv/bin/python PATH=$venv/bin:$PATH
  cargo clippy --release --locked --manifest-path "$package/Cargo.toml" -- -D warnings
  (cd "$package" && ruff format --check . && ruff check . && mypy py_src && MYPYPATH=py_src mypy benches)
  maturin build --release --locked --zig --compatibility manylinux_2_28 -m "$package/Cargo.toml" --out "$scratch"
  auditwheel show "$scratch"/*.whl
  auditwheel show "$scratch"/*.whl | tr '\n' ' ' | grep -qE 'platform tag: +"manylinux_2_(1[0-9]|2[0-8])_' ||
    fail "the wheel needs newer system libraries than manylinux_2_28 has"
  pip install --quiet --no-deps --force-reinstall "$scratch"/*.whl
  # From another folder, so that what is installed is what is imported.
  (cd "$scratch" && python -m mypy.stubtest gradwire --mypy-config-file "$package/pyproject.toml" \
    --allowlist "$package/stubtest-allow.txt")
  (cd "$package" && python -m pytest -p no:cacheprovider)
  (cd "$scratch" && python -m gradwire list)
  check_free_threaded_is_refused "$scratch"
  check_gradwire_torch "$scratch"
}

# check_free_threaded_is_refused FOLDER: by the build, which is told of such an interpreter: Debian has none. The tests see
# to the import.
check_free_threaded_is_refused() {
  printf '%s\n' implementation=CPython version=3.14 build_flags=Py_GIL_DISABLED >"$1/free-threaded"
  if PYO3_CONFIG_FILE=$1/free-threaded cargo check --locked --manifest-path bindings/python/Cargo.toml \
    --target-dir "$CARGO_TARGET_DIR/free-threaded" 2>"$1/refusal"; then
    fail "the package builds for free-threaded Python"
  fi
  grep 'error: gradwire-python@.* needs a Python with the GIL' "$1/refusal" || { cat "$1/refusal"; fail "the refusal is unclear"; }
}

# check_gradwire_torch FOLDER: the wheel in the folder, in an environment with torch.
check_gradwire_torch() {
  local package=$root/bindings/python
  install_beside_torch "$1"
  (cd "$package" && "$venv/bin/python" -m mypy py_src)
  test_hook "$1"
  timeout -k 5 "$torch_seconds" "$venv/bin/python" benches/study/adamw/adamw.py "$1/adamw.jsonl" \
    --tasks quick-further --rates 2e-3,4e-3,8e-3 \
    --methods "dense,local2-topk-7%,local2-efsign-momentum-server,local4-first,local30-streaming,shared-topk-3.2%,gradients-powersgd,muon-local4,signum-votes,demo-3%,ef21-sgdm-topk-3.2%,1-bit-adam"
  timeout -k 5 "$torch_seconds" "$venv/bin/python" benches/study/adamw/adamw.py "$1/adamw.jsonl" \
    --tasks quick-lora --rates 4e-3,8e-3 --methods "dense,local2-topk-7%"
  benches/study/adamw/report.py "$1/adamw.jsonl" quick-further quick-lora
  (cd "$1" && timeout -k 5 "$torch_seconds" "$venv/bin/torchrun" --nproc-per-node=2 "$package/examples/ddp.py" --steps 60)
  python_venv_on "$venv" "$package/requirements-frameworks.txt"
  (cd "$package" && timeout -k 5 "$torch_seconds" "$venv/bin/python" -m pytest -p no:cacheprovider tests/frameworks)
}

# test_hook FOLDER: a third of the files in each of three processes at once, because tests wait more than they compute.
test_hook() {
  local third running=() failed=0 chosen
  for third in 0 1 2; do
    mapfile -t chosen < <(cd bindings/python && printf '%s\n' tests/ddp/test_*.py | awk -v third="$third" 'NR % 3 == third')
    (cd bindings/python && exec timeout -k 5 "$torch_seconds" "$venv/bin/python" -m pytest -p no:cacheprovider "${chosen[@]}") \
      >"$1/hook-$third.log" 2>&1 &
    running+=($!)
  done
  for third in 0 1 2; do
    wait "${running[third]}" || failed=1
    cat "$1/hook-$third.log"
  done
  return "$failed"
}

# install_beside_torch FOLDER: sets `venv`, an environment with torch and the wheel in the folder.
install_beside_torch() {
  local cache=${XDG_CACHE_HOME:-$HOME/.cache} free
  mkdir -p "$cache"
  free=$(df --output=avail -B 1G "$cache" | tail -n 1)
  torch_is_there || ((free >= torch_gigabytes)) ||
    fail "torch needs $torch_gigabytes GB of disk in $cache, and $free are free"
  python_venv bindings/python/requirements-torch.txt
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$1"/*.whl
}

torch_is_there() {
  local key
  key=$({ python3 --version && cat bindings/python/requirements-torch.txt; } | sha256sum | cut -c 1-16)
  [[ -f ${XDG_CACHE_HOME:-$HOME/.cache}/gradwire/venv-$key/complete ]]
}

# The library is the one that `install.sh` puts below a prefix, in the profile dev: with assertions and checks of overflow.
check_c() {
  as_released
  need_component clippy
  need_command g++ g++
  need_command gcc gcc libc6-dev
  need_command nm binutils
  need_command pkg-config pkg-config
  need_command cmake cmake make
  need_command valgrind valgrind libc6-dbg
  need_command python3 python3
  local package=$root/bindings/c scratch program
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name is wanted as it is now
  trap "rm -rf '$scratch'" EXIT
  cargo clippy --locked --all-targets --manifest-path "$package/Cargo.toml" -- -D warnings
  cargo test --locked --manifest-path "$package/Cargo.toml"
  "$package/install.sh" "$scratch/prefix" dev
  local strict=(-Wall -Wextra -Werror -pedantic) library=$scratch/prefix/lib/libgradwire.a
  local include=-I$scratch/prefix/include libraries=("$library" -lm -lpthread -ldl)
  # The header alone includes what it needs.
  for program in "gcc -std=c99 -x c" "clang -std=c99 -x c" "g++ -std=c++17 -x c++" "clang++ -std=c++17 -x c++"; do
    if command -v "${program%% *}" >/dev/null; then
      # shellcheck disable=SC2086  # one word for each flag
      echo '#include <gradwire.h>' | $program "${strict[@]}" -fsyntax-only "$include" -
    fi
  done
  for program in examples/{first,decode,train} tests/{abi,api,exchange,hostile,parts,rounds}; do
    if command -v clang >/dev/null; then
      clang -std=c99 "${strict[@]}" -fsyntax-only "$include" "$package/$program.c"
    fi
    gcc -std=c99 "${strict[@]}" -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all "$include" \
      "$package/$program.c" "${libraries[@]}" -o "$scratch/${program##*/}"
    gcc -std=c99 "${strict[@]}" -g "$include" "$package/$program.c" "${libraries[@]}" -o "$scratch/${program##*/}-plain"
  done
  g++ -std=c++17 "${strict[@]}" -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all "$include" \
    "$package/examples/model.cpp" "${libraries[@]}" -o "$scratch/model"
  c_interface_is_listed "$scratch"
  "$scratch/first"
  "$scratch/train"
  "$scratch/model"
  decodes_frames_of_others "$scratch/decode"
  "$scratch/api" tests/golden/none.bin
  "$scratch/exchange"
  "$scratch/parts"
  "$scratch/rounds"
  # What it makes and leaves behind is meant to be there until the end; and it asks for more memory than there is.
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 "$scratch/hostile" tests/bad
  valgrind --quiet --error-exitcode=9 --leak-check=full "$scratch/api-plain" tests/golden/none.bin
  valgrind --quiet --error-exitcode=9 --leak-check=full "$scratch/exchange-plain"
  valgrind --quiet --error-exitcode=9 --leak-check=full "$scratch/parts-plain"
  valgrind --quiet --error-exitcode=9 --leak-check=full "$scratch/rounds-plain"
  valgrind --quiet --error-exitcode=9 "$scratch/hostile-plain" tests/bad
  mv "$scratch/prefix" "$scratch/moved"
  c_finds_what_is_installed "$scratch/moved" "$scratch/moved/lib"
}

# decodes_frames_of_others PROGRAM: the golden frames, and those of the Python package if `./ci.sh python` has installed it.
decodes_frames_of_others() {
  local python=python3 candidate
  for candidate in "${XDG_CACHE_HOME:-$HOME/.cache}"/gradwire/venv-*/bin/python; do
    if "$candidate" -c 'import gradwire, numpy' 2>/dev/null; then python=$candidate; fi
  done
  "$python" bindings/c/tests/decode.py "$1" | tee "$logs/c-decode.txt"
  if grep -q SKIPPED "$logs/c-decode.txt"; then note "c: no frame from Python was decoded; ./ci.sh python installs its package"; fi
}

# c_interface_is_listed FOLDER: with what was built: symbols, sizes of objects (on machines of 64 bits), and the numbers of
# results. What a program of an older minor version calls must stay.
c_interface_is_listed() {
  local library=$1/prefix/lib/libgradwire.so
  { nm -D --defined-only "$library" | awk '{ print $3 }' | LC_ALL=C sort && "$1/abi"; } | diff bindings/c/abi.txt - ||
    fail "the interface (>) differs from bindings/c/abi.txt (<)"
  if nm -D --defined-only "$library" | grep -v ' gw_'; then fail "exported without the prefix gw_"; fi
  readelf -d "$library" | grep -F "SONAME" | grep -qF "[libgradwire.so.0]" || fail "another soname"
}

# c_finds_what_is_installed PREFIX LIBRARIES: by pkg-config and by CMake, shared and static; LIBRARIES is their folder.
c_finds_what_is_installed() {
  local flags built=$1.built
  export PKG_CONFIG_PATH=$2/pkgconfig
  flags=$(pkg-config --cflags --libs gradwire)
  mkdir "$built"
  # shellcheck disable=SC2086  # one word for each flag
  gcc -std=c99 bindings/c/examples/first.c $flags -o "$built/by-pkg-config"
  LD_LIBRARY_PATH=$2 "$built/by-pkg-config"
  cp bindings/c/tests/cmake/CMakeLists.txt "$built"
  cmake -S "$built" -B "$built" -DCMAKE_PREFIX_PATH="$1" -DEXAMPLE="$root/bindings/c/examples/first.c"
  cmake --build "$built"
  "$built/shared"
  "$built/static"
}

# Left to the ordinary tests: those that go through all 16-bit values, or all tables, which takes Miri hours.
check_miri() {
  need_component miri nightly
  need_component rust-src nightly
  # All unsafe code is in the kernels.
  local modules=(kernels:: index::)
  local exhaustive=(casts_are_those every_narrow_value every_table_of_two any_bytes bytes_are_those_of_the_definition
    every_subset random_subsets most_damage all_sizes_of_blocks blocks_of_every_size exactly_best_one)
  local skip=() name
  for name in "${exhaustive[@]}"; do skip+=(--skip "$name"); done
  note "under Miri neither exhaustive tests nor AVX-512, which it does not know: ${exhaustive[*]}"
  # Without isolation: proptest asks for the current folder. Tree borrows: slices of bits, as bitvec has them, begin as
  # references to nothing, which stacked borrows takes for the whole of what may be used.
  export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows" PROPTEST_CASES=2
  cargo +nightly miri test -p gradwire --lib -- "${skip[@]}" "${modules[@]}"
  if [[ $(uname -m) == x86_64 ]]; then
    # Without `std` the instruction set is that of the build; Miri shows none at run time, and knows no instruction for casts
    # of half precision.
    skip+=(--skip casts_of_any_number)
    RUSTFLAGS="-C target-feature=+avx2,+bmi1,+bmi2,+lzcnt,+popcnt,+sse4.2,+f16c" \
      cargo +nightly miri test -p gradwire --no-default-features --lib -- "${skip[@]}" kernels::
  fi
}

check_metrics() {
  need_c_compiler
  need_library zmq libzmq3-dev
  need_component clippy
  cargo clippy --release -p gradwire-trainer --all-targets --features zmq,metrics -- -D warnings
  cargo test --release -p gradwire-trainer --features zmq,metrics --lib monitor
  cargo test --release -p gradwire-trainer --features zmq,metrics --test trainer monitor
  cargo test --release -p gradwire-trainer --features zmq,metrics --test remote outsiders
}

check_deny() {
  need_cargo_tool cargo-deny 0.20.2
  local manifest
  for manifest in Cargo.toml bindings/c/Cargo.toml; do
    cargo deny --locked --config deny.toml --manifest-path "$manifest" check --hide-inclusion-graph bans licenses sources
  done
  if cargo deny fetch db; then
    cargo deny check advisories
    cargo deny --config deny.toml --manifest-path bindings/c/Cargo.toml check advisories
  else
    note "ADVISORIES NOT CHECKED: their database could not be fetched"
  fi
}

# Unpacked beside the other MPI library, which is left as it is. What is built is for one library only.
check_mpich() {
  need_c_compiler
  need_libclang
  need_command apt-get apt
  # For the libraries that both stand on.
  need_command mpirun openmpi-bin
  local root=$CARGO_TARGET_DIR/mpich/root
  unpack_mpich "$root"
  LD_LIBRARY_PATH=$root/usr/lib/$(gcc -print-multiarch)
  export LD_LIBRARY_PATH MPICC=$root/usr/bin/mpicc
  export GRADWIRE_MPIRUN=$root/usr/bin/mpiexec.hydra CARGO_TARGET_DIR=$CARGO_TARGET_DIR/mpich
  local with=(-p gradwire-transports -p gradwire-trainer)
  with+=(--features "gradwire-transports/mpi,gradwire-transports/conformance,gradwire-trainer/mpi")
  cargo test --release --no-run --test mpi "${with[@]}"
  timeout -k 3 "$mpi_seconds" cargo test --release --no-fail-fast --test mpi "${with[@]}" -- --include-ignored --nocapture
}

check_arch() {
  need_c_compiler
  cross_test aarch64-unknown-linux-gnu aarch64-linux-gnu qemu-aarch64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross
  cross_test i686-unknown-linux-gnu i686-linux-gnu qemu-i386 gcc-i686-linux-gnu libc6-dev-i386-cross
  # Not s390x: QEMU 7.2 multiplies wrongly there (MDEBR, f32 · f32 to f64).
  cross_test powerpc64-unknown-linux-gnu powerpc64-linux-gnu qemu-ppc64 gcc-powerpc64-linux-gnu libc6-dev-ppc64-cross
}

# Those tests of dieharder that its author calls good and that end within a minute. A weak result is repeated with more
# samples until it passes or fails.
check_streams() {
  need_c_compiler
  need_command dieharder dieharder
  cargo build --release -p gradwire-tests --bin streams
  ! streams_pass weyl 0 || fail "dieharder finds nothing in a generator that is known to be bad"
  local what
  for what in single steps units ranks; do
    streams_pass "$what" 0 2 3 4 8 9 10 11 12 13 15 16 100 101 102 202 204 205 206 207 208 209 ||
      fail "the draws failed ($what)"
  done
}

# What another compiler makes is not compared, and said.
check_instructions() {
  as_released
  need_c_compiler
  need_command valgrind valgrind libc6-dbg
  local recorded=benches/results/instructions.md counted=$logs/instructions.md
  benches/instructions.sh | tee "$counted"
  if ! grep -qF "$(rustc --version)" "$recorded"; then
    note "instructions not compared: $recorded was made by another compiler"
    return
  fi
  awk -F'|' -v tolerance=1.01 '
    !/^\| `/ { next }
    FNR == NR { encode[$2] = $3; decode[$2] = $4; next }
    !($2 in encode) { print "not recorded:" $2; bad = 1; next }
    $3 > encode[$2] * tolerance || $4 > decode[$2] * tolerance {
      print "more than recorded:" $2 encode[$2] "->" $3 "," decode[$2] "->" $4; bad = 1
    }
    { seen++ }
    END { exit bad || !seen }' "$recorded" "$counted" || fail "see above; a change that is worth it records them anew"
}

check_fuzz() {
  need_command c++ g++
  need_toolchain nightly
  need_cargo_tool cargo-fuzz 0.13.2
  local targets target
  mapfile -t targets < <(cargo +nightly fuzz list --fuzz-dir fuzz)
  ((${#targets[@]} > 0)) || fail "there are no fuzz targets"
  fuzz/seed.sh
  cargo +nightly fuzz build --fuzz-dir fuzz
  for target in "${targets[@]}"; do
    cargo +nightly fuzz run --fuzz-dir fuzz "$target" -- \
      -dict=fuzz/floats.dict -max_total_time="$fuzz_seconds" -timeout=10 -print_final_stats=1
  done
}

check_bench_full() {
  as_released
  need_c_compiler
  cargo bench -p gradwire-benches
}

# Before the first release there is nothing to compare with.
check_semver() {
  need_c_compiler
  need_command git git
  local last
  [[ $(git rev-parse --is-shallow-repository) == false ]] || fail "a shallow clone lacks the last release: git fetch --unshallow --tags"
  last=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null) || { note "no release yet: nothing to compare with"; return; }
  git diff --no-renames --diff-filter=a --exit-code --name-status "$last" -- 'tests/golden/*.bin' 'tests/messages/*.bin' 'tests/bad/*.bin' ||
    fail "release $last had other frames: they are added, never edited"
  need_cargo_tool cargo-semver-checks 0.51.0
  # The features are those of the documentation. Of the trainer's library only one function is promised: see its text.
  local failed=0
  cargo semver-checks --baseline-rev "$last" -p gradwire || failed=1
  cargo semver-checks --baseline-rev "$last" -p gradwire-transports --default-features --features conformance || failed=1
  ((failed == 0)) || fail "see above; the number of the next release has to say so"
}

check_cargo_c() {
  as_released
  need_cargo_tool cargo-c 0.10.18+cargo-0.92.0 cargo-cinstall
  need_command gcc gcc libc6-dev
  need_command pkg-config pkg-config
  need_command cmake cmake make
  local scratch
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name is wanted as it is now
  trap "rm -rf '$scratch'" EXIT
  cargo cinstall --locked --manifest-path bindings/c/Cargo.toml --prefix "$scratch/prefix"
  c_finds_what_is_installed "$scratch/prefix" "$scratch/prefix/lib/$(gcc -print-multiarch)"
}

check_release() {
  as_released
  need_c_compiler
  need_command python3 python3 python3-venv
  need_command qemu-aarch64 qemu-user
  need_rustup
  local files=$CARGO_TARGET_DIR/release-files
  rm -rf "$files"
  packaging/build.sh "$files"
  python_venv bindings/python/requirements-dev.txt
  # Whether it builds, not how fast it is.
  PATH=$venv/bin:$PATH MATURIN_PEP517_ARGS="--profile dev" "$venv/bin/pip" wheel --quiet --no-deps --no-build-isolation \
    --wheel-dir "$CARGO_TARGET_DIR/from-sdist" "$files"/gradwire-[0-9]*.tar.gz
  packaging/try.sh "$files"
}

# --- parts of checks -------------------------------------------------------------------------------------------------

# forbid WHAT PATTERN: fails where a text file of the repository has a line that matches.
forbid() {
  local status=0
  git grep --untracked -nIE -e "$2" -- . ':!Cargo.lock' ':!*/Cargo.lock' ':!LICENSE-*' ':!*/LICENSE-*' || status=$?
  case $status in
    0) fail "$1 in the text above" ;;
    1) ;;
    *) fail "git grep failed" ;;
  esac
}

# cargo_check_elsewhere FLAGS: for systems of which this machine has neither a linker nor a C compiler.
cargo_check_elsewhere() {
  local name targets=()
  for name in x86_64-pc-windows-gnu aarch64-apple-darwin; do
    need_target "$name"
    targets+=(--target "$name")
  done
  cargo check --release "${targets[@]}" "$@"
}

# check_with_oldest_compiler FOLDER PACKAGE [FEATURE FLAGS]
check_with_oldest_compiler() {
  local folder=$1 package=$2 oldest toolchain
  shift 2
  oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$folder/Cargo.toml")
  [[ -n $oldest ]] || fail "$folder/Cargo.toml declares no rust-version"
  toolchain=$oldest
  [[ $toolchain == *.*.* ]] || toolchain+=.0
  if [[ $(rustc --version) == "rustc $toolchain "* ]]; then
    # The compiler in use; in the release profile, whose dependencies the lints have checked already.
    cargo check --release -p "$package" "$@"
  else
    need_toolchain "$toolchain"
    cargo "+$toolchain" check --release -p "$package" "$@"
  fi
}

# firmware_cargo COMMAND…: for the microcontroller, or on it; the folder holds the flags of its linker.
firmware_cargo() {
  (cd tests/firmware && timeout 600 cargo "$1" --release --target thumbv7em-none-eabihf "${@:2}")
}

# same_frames_on_device BUILD FRAMES: what the emulated device prints is what this machine prints, but for the lines
# about its memory. Builds are features of tests/firmware.
same_frames_on_device() {
  local build=$1 frames=$2 device=$logs/device-$1.txt host=$logs/host-$1.txt
  firmware_cargo run --bin device --features "device,$build" >"$device" || fail "the device ended with an error ($build)"
  cargo run --release --manifest-path tests/firmware/Cargo.toml --bin host --features "host,$build" >"$host"
  (($(grep -c '^frame [0-9a-f]' "$host") == frames)) || fail "$frames frames were expected ($build)"
  grep -v '^memory: ' "$device" | cmp - "$host" || fail "the frames of the device are not those of this machine ($build)"
  echo "$frames frames are the same ($build)"
}

# same_frames_from_c: what the C program prints on the emulated device is what `same_frames_on_device small` found. Its code
# is counted without the program, and without memcpy and the like, which every C library has.
same_frames_from_c() {
  need_command clang clang
  need_component clippy
  local scratch=$CARGO_TARGET_DIR/embedded target=thumbv7em-none-eabihf package=$root/bindings/c lld code ram
  local flags=(--target="$target" -mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard -ffreestanding -Oz -ffunction-sections)
  flags+=(-std=c99 -Wall -Wextra -Werror -pedantic)
  cargo clippy --locked --manifest-path "$package/Cargo.toml" --profile small --no-default-features --target "$target" -- -D warnings
  "$package/install.sh" "$scratch" small "$target"
  diff <(sed -n '/linking finds what/,/Each codec has/p' "$scratch/include/gradwire.h" | grep -o 'gw_[a-z0-9_]*') \
    <(nm "$scratch/lib/libgradwire.a" 2>/dev/null | awk '$2 == "T" && /gw_/ { print $3 }' | LC_ALL=C sort -u) ||
    fail "the header lists other functions (<) than the library without a heap has (>)"
  clang "${flags[@]}" "-I$scratch/include" -c "$package/examples/embedded.c" -o "$scratch/embedded.o"
  clang "${flags[@]}" -c tests/firmware/board.c -o "$scratch/board.o"
  lld=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-lld
  (cd tests/firmware && "$lld" -flavor gnu -T board.ld --gc-sections --icf=all -Map="$scratch/map" -o "$scratch/embedded" \
    "$scratch"/{board.o,embedded.o,lib/libgradwire.a})
  timeout 600 qemu-system-arm -cpu cortex-m4 -machine mps2-an386 -nographic -semihosting-config enable=on,target=native \
    -kernel "$scratch/embedded" >"$logs/device-c.txt" || fail "the C program ended with an error"
  grep -v '^memory: ' "$logs/device-c.txt" | cmp - "$logs/host-small.txt" || fail "the frames of the C program are other ones"
  code=$(awk '/libgradwire[.]a[(]gradwire.*:[(][.]text/ { print $3 }' "$scratch/map" | sed 's/^/0x/' | paste -sd+)
  code=$((code)) ram=$(awk '$1 == "memory:" { print $3 }' "$logs/device-c.txt")
  echo "the same frames from C: $code bytes of code, and $ram bytes of stack"
  ((0 < code && code <= 26 * 1024)) || fail "not within 26 KiB of code"
  ((0 < ram && ram <= 4 * 1024)) || fail "not within 4 KiB of RAM"
}

# unpack_mpich FOLDER: Debian's MPICH, with a compiler wrapper that knows where it lies.
unpack_mpich() {
  local folder=$1 package
  local packages=(libmpich12 libmpich-dev mpich libslurm38 libucx-dev hwloc-nox)
  if [[ -x $folder/usr/bin/mpicc ]]; then return; fi
  rm -rf "$folder"
  mkdir -p "$folder/archives"
  (cd "$folder/archives" && apt-get download "${packages[@]}") || fail "MPICH could not be downloaded from Debian's archive"
  for package in "$folder/archives"/*.deb; do dpkg -x "$package" "$folder"; done
  sed -E "s,^((exec_)?prefix|includedir|libdir)=/usr,&@,; s,^sysconfdir=/etc,&@,; s,=(/usr|/etc)@,=$folder\\1," \
    "$folder/usr/bin/mpicc.mpich" >"$folder/usr/bin/mpicc"
  chmod +x "$folder/usr/bin/mpicc"
}

archive_is_complete() {
  local archives files wanted folder
  archives=("$CARGO_TARGET_DIR/package/$1"-[0-9]*.crate)
  files=$(tar -tzf "${archives[0]}" | cut -d/ -f2-)
  printf '%s:\n%s\n' "$1" "$files"
  for wanted in Cargo.toml README.md LICENSE-MIT LICENSE-APACHE src/lib.rs; do
    grep -qxF "$wanted" <<<"$files" || fail "the archive of $1 lacks $wanted"
  done
  folder=${1#gradwire-}
  folder=${folder/#gradwire/core}
  for wanted in LICENSE-MIT LICENSE-APACHE; do
    cmp "$wanted" "$folder/$wanted" || fail "$folder/$wanted differs from the workspace's"
  done
}

# Somebody else's project, outside of this tree, compiles what the archives hold, and runs the examples of two READMEs.
new_project_uses_archives() {
  local project name
  project=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name is wanted as it is now
  trap "rm -rf '$project'" EXIT
  mkdir -p "$project/src/bin"
  {
    printf '[package]\nname = "somebody-elses"\nedition = "2024"\n\n[dependencies]\n'
    for name in gradwire gradwire-transports; do echo "$name = \"$(packaging/versions.sh)\""; done
    printf '\n[workspace]\nmembers = ["gradwire*"]\n\n[patch.crates-io]\n'
    for name in "${published[@]}"; do
      tar -xzf "$CARGO_TARGET_DIR/package/$name"-[0-9]*.crate -C "$project"
      echo "$name = { path = \"$(cd "$project" && echo "$name"-[0-9]*)\" }"
    done
  } >"$project/Cargo.toml"
  # So that other people's packages are those that other checks have compiled.
  cp Cargo.lock "$project"
  first_example README.md >"$project/src/bin/codec.rs"
  { echo 'fn main() {' && first_example transports/README.md && echo '}'; } >"$project/src/bin/exchange.rs"
  (cd "$project" && cargo check --release --workspace && cargo run --release --bin codec && cargo run --release --bin exchange)
}

# first_example DOCUMENT: its first block of Rust.
first_example() { awk '/^```rust$/ { inside = 1; next } inside && /^```$/ { exit } inside' "$1"; }

# cross_test TARGET GNU_PREFIX EMULATOR PACKAGES…: for TARGET, under user-mode emulation, the codec crate's tests and
# the golden and bad frames.
cross_test() {
  local target=$1 prefix=$2 emulator=$3 variable
  shift 3
  need_command "$prefix-gcc" "$@"
  need_command "$emulator" qemu-user
  need_target "$target"
  variable=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$target")
  export "${variable}_LINKER=$prefix-gcc" "${variable}_RUNNER=$emulator -L /usr/$prefix" PROPTEST_CASES=32
  cargo test -p gradwire --target "$target"
  cargo test -p gradwire-tests --target "$target" --test golden --test payloads --test bad_frames
}

# streams_pass WHAT TESTS…: whether dieharder's tests of these draws all pass.
streams_pass() {
  local what=$1 number verdicts
  shift
  for number in "$@"; do
    verdicts=$("$CARGO_TARGET_DIR/release/streams" "$what" | timeout 600 dieharder -g 200 -d "$number" -Y 1 |
      grep -E 'PASSED|WEAK|FAILED')
    echo "$what: $verdicts"
    if [[ $verdicts == *FAILED* || $verdicts != *PASSED* ]]; then return 1; fi
  done
}

# --- what a check needs: installed where that is possible, else the command that would ------------------------------

# need_command COMMAND DEBIAN_PACKAGES…
need_command() {
  local command=$1
  shift
  if command -v "$command" >/dev/null; then return; fi
  install_packages "$@" || true
  command -v "$command" >/dev/null || fail "$command is missing; install it with: sudo apt-get install $*"
}

# install_packages DEBIAN_PACKAGES…: fails where that is not possible.
install_packages() {
  local as_root=()
  if ((EUID != 0)); then as_root=(sudo -n); fi
  command -v apt-get >/dev/null || return 1
  ((EUID == 0)) || sudo -n true 2>/dev/null || return 1
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

need_c_compiler() { need_command cc gcc libc6-dev; }

# need_library LIBRARY DEBIAN_PACKAGES…: one that the C compiler can link.
need_library() {
  local library=$1
  shift
  if is_linkable "$library"; then return; fi
  install_packages "$@" || true
  is_linkable "$library" || fail "lib$library is missing; install it with: sudo apt-get install $*"
}

is_linkable() { echo 'int main(void) { return 0; }' | cc -x c - -Wl,--no-as-needed "-l$1" -o /dev/null 2>/dev/null; }

need_networks() {
  need_c_compiler
  need_command mpicc libopenmpi-dev openmpi-bin libclang-dev
  need_libclang
  need_library zmq libzmq3-dev
}

# The header translator of the MPI binding loads it while it runs.
need_libclang() {
  if ldconfig -p | grep -q 'libclang[-.]'; then return; fi
  install_packages libclang-dev || fail "libclang is missing; install it with: sudo apt-get install libclang-dev"
}

# python_venv REQUIREMENTS…: sets `venv`, a virtual environment with these files' packages, in the user's cache folder; made
# once for each content of the files and version of Python. Nothing of it is in the repository.
python_venv() { python_venv_on "" "$@"; }

# python_venv_on BASE REQUIREMENTS…: the same, and all that the environment BASE has, if it is given.
python_venv_on() {
  local started=$SECONDS base=$1 key
  shift
  key=$({ python3 --version && echo -n "$base" && cat "$@"; } | sha256sum | cut -c 1-16)
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/gradwire/venv-$key
  if [[ -f $venv/complete ]]; then
    echo "the virtual environment $venv is there"
    return
  fi
  rm -rf "$venv"
  python3 -m venv "$venv" || fail "python3 -m venv failed; install it with: sudo apt-get install python3-venv"
  [[ -z $base ]] || ls -d "$base"/lib/python3*/site-packages >"$(echo "$venv"/lib/python3*/site-packages)/base.pth"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${@/#/--requirement=}" ||
    fail "the packages of $* could not be installed"
  touch "$venv/complete"
  note "made the virtual environment $venv in $((SECONDS - started)) s; later runs find it"
}

need_rustup() { command -v rustup >/dev/null || fail "rustup is missing; install it as https://rustup.rs says"; }

need_toolchain() {
  if rustc "+$1" --version >/dev/null 2>&1; then return; fi
  need_rustup
  rustup toolchain install "$1" --profile minimal --no-self-update ||
    fail "Rust $1 is missing; install it with: rustup toolchain install $1"
}

# need_component COMPONENT [TOOLCHAIN]
need_component() {
  local of=()
  if (($# == 2)); then
    need_toolchain "$2"
    of=(--toolchain "$2")
  elif cargo "$1" --version >/dev/null 2>&1 || cargo "${1#rust}" --version >/dev/null 2>&1; then
    return
  fi
  need_rustup
  rustup component add "$1" "${of[@]}" || fail "$1 is missing; install it with: rustup component add $1 ${of[*]}"
}

need_target() {
  if [[ -d $(rustc --print sysroot)/lib/rustlib/$1/lib ]]; then return; fi
  need_rustup
  rustup target add "$1" || fail "target $1 is missing; install it with: rustup target add $1"
}

# need_cargo_tool NAME VERSION [PROGRAM]: any version that is there will do; PROGRAM is one of its programs, if none has its name.
need_cargo_tool() {
  if command -v "${3:-$1}" >/dev/null; then return; fi
  need_c_compiler
  env -u CARGO_TARGET_DIR cargo install --locked "$1" --version "$2" ||
    fail "$1 is missing; install it with: cargo install --locked $1 --version $2"
}

# --- running them ----------------------------------------------------------------------------------------------------

fail() {
  echo "error: $*" >&2
  exit 1
}

# note TEXT: stands beside the check in the summary, so that nothing is left out in silence.
note() {
  echo "note: $*" >&2
  echo "$*" >>"$notes"
}

usage() {
  cat <<USAGE
./ci.sh            every ordinary check
./ci.sh NAME…      only those
./ci.sh nightly    the checks that take longer
./ci.sh list       what there is

Checks run one after the other, also after one has failed; the summary stands at the end and the exit code is 1 if any
failed. Their output is kept in the target folder, under ci/.
USAGE
}

list() {
  local name
  for name in "${ordinary[@]}"; do printf '%-12s %s\n' "$name" "${purpose[$name]}"; done
  echo
  echo "./ci.sh nightly:"
  for name in "${nightly[@]}"; do printf '%-12s %s\n' "$name" "${purpose[$name]}"; done
}

# run_check NAME live|quiet: sets `status` and `took`.
run_check() {
  local log=$logs/$1.log started=$SECONDS
  : >"$notes"
  printf '== %s: %s\n' "$1" "${purpose[$1]}"
  # The subshell stands in no condition, where bash would ignore `set -e` inside of it.
  set +e
  if [[ $2 == live ]]; then
    (set -e && "check_${1//-/_}") 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
  else
    (set -e && "check_${1//-/_}") >"$log" 2>&1
    status=$?
  fi
  set -e
  took=$((SECONDS - started))
  if ((status != 0)); then
    failed_tests "$log" >>"$notes"
    if [[ $2 == quiet ]]; then { tail -n 60 "$log" && cat "$notes"; } | sed 's/^/   | /'; fi
  fi
  printf '   %s after %d s\n' "$(verdict "$status")" "$took"
}

# failed_tests LOG: which, and where they panicked; the end of a long log may say only that some did.
failed_tests() {
  awk '/^test .+ \.\.\. FAILED$/; /^failures:$/ { told = 1 } /^test result:/ { told = 0 }
       told && /panicked at / { print; getline; print }' "$1" | sed -n '1,30p'
}

verdict() { if (($1 == 0)); then echo PASS; else echo FAIL; fi; }

run_all() {
  local how=$1 name failed=0 summary="" line
  shift
  mkdir -p "$logs"
  for name in "$@"; do
    run_check "$name" "$how"
    if ((status != 0)); then failed=1; fi
    summary+=$(printf '%-12s %s %6d s' "$name" "$(verdict "$status")" "$took")$'\n'
    while IFS= read -r line; do summary+="             ! $line"$'\n'; done <"$notes"
  done
  printf '\n%s' "$summary"
  printf '%-12s %s %6d s\n' total "$(verdict "$failed")" "$SECONDS"
  return "$failed"
}

main() {
  exec </dev/null
  command -v cargo >/dev/null || fail "cargo is missing; install Rust as https://rustup.rs says"
  case ${1-} in
    "") run_all quiet "${ordinary[@]}" ;;
    nightly) run_all quiet "${nightly[@]}" ;;
    list) list ;;
    help | -h | --help) usage ;;
    *)
      local name
      for name in "$@"; do
        [[ -n ${purpose[$name]-} ]] || fail "there is no check named '$name'; ./ci.sh list names them"
      done
      run_all live "$@"
      ;;
  esac
}

main "$@"
