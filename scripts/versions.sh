#!/usr/bin/env bash
# Runs the Python tests on every version of Python that is supported and on this machine, each in an environment of its
# own, made under .cache/versions. On 3.12 it is the oldest torch that is supported.
#
#   versions.sh [VERSION...]          3.11 3.12 3.13 3.14, or those named
set -uo pipefail
cd "$(dirname "$0")/.."

declare -A constraints=([3.11]=constraints/dev.txt [3.12]=constraints/oldest.txt [3.13]=constraints/dev.txt [3.14]=constraints/dev.txt)

interpreter() { # prints the path of CPython $1, wherever it was installed from
    local candidate pyenv
    pyenv=$(pyenv prefix "$(pyenv latest "$1" 2>/dev/null)" 2>/dev/null)/bin/python
    for candidate in "python$1" "$(uv python find "$1" 2>/dev/null)" "$pyenv"; do
        "$candidate" -c 'import sys; print(sys.executable)' 2>/dev/null && return
    done
    return 1
}

[ $# -gt 0 ] || set -- 3.11 3.12 3.13 3.14
failed=0
summary=()
for version in "$@"; do
    if ! python=$(interpreter "$version"); then
        summary+=("$version  not on this machine: skipped")
        continue
    fi
    folder=.cache/versions/$version
    if FUSELENS_PYTHON=$python scripts/environment.sh "$folder" "${constraints[$version]}" &&
        "$folder/bin/python" scripts/run_tests.py pytest; then
        summary+=("$version  ok")
    else
        summary+=("$version  FAILED")
        failed=1
    fi
done
printf '%s\n' "${summary[@]}"
exit "$failed"
