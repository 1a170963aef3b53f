#!/usr/bin/env bash
# Makes .venv from nothing, or brings it up to date; a no-op while its inputs are unchanged.
#
#   environment.sh [FOLDER [CONSTRAINTS]]          .venv, constraints/dev.txt
#
# torch comes first and alone, in exactly the pinned version: a looser requirement may pull another build of it. Which
# build an exact version means is pip's configuration (PIP_INDEX_URL, PIP_FIND_LINKS, …); any build of it will do.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
constraints=${2:-constraints/dev.txt}
inputs=(pyproject.toml hatch_build.py "$constraints" scripts/environment.sh)
while read -r source; do inputs+=("$source"); done < <(find compiler -name "*.[ch]" | sort)
wanted=$(for f in "${inputs[@]}"; do [ -f "$f" ] && cat "$f"; done | cksum)
stamp=$venv/fuselens-environment
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

scripts/prerequisites.sh check
started=$SECONDS
if [ ! -x "$venv/bin/python" ]; then
    python=$(scripts/prerequisites.sh python)
    echo "making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
install() { "$venv/bin/python" -m pip install --disable-pip-version-check -qq "$@"; }

torch=$(grep -E '^torch==' "$constraints")
if [ "$("$venv/bin/python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch").split("+")[0])' 2>/dev/null)" != "$torch" ]; then
    echo "installing $torch"
    install --constraint "$constraints" "$torch"
fi
echo "installing fuselens and its development tools"
install --constraint "$constraints" hatchling 'setuptools>=69' # as pyproject.toml asks; venv may have put an older one there
install --constraint "$constraints" --no-build-isolation --editable '.[server,triton,dev]'
echo "$wanted" >"$stamp"
echo "environment ready in $((SECONDS - started)) s"
