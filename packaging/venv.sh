# shellcheck shell=bash
# Sets `venv`: a virtual environment with packaging/requirements.txt, made once for each content of that file.
venv_key=$({ python3 --version && cat packaging/requirements.txt; } | sha256sum | cut -c 1-16)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/gradwire/venv-$venv_key
if [[ ! -f $venv/complete ]]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement=packaging/requirements.txt
  touch "$venv/complete"
fi
