#!/usr/bin/env bash
# notes.sh VERSION: prints the section of CHANGELOG.md on that version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
notes=$(awk -v heading="## $1" '/^## / { inside = index($0 " ", heading " ") == 1; next } inside' CHANGELOG.md)
[[ -n ${notes//[[:space:]]/} ]] || { echo "CHANGELOG.md has no section '## $1'" >&2; exit 1; }
echo "$notes"
