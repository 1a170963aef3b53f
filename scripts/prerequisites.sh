#!/usr/bin/env bash
# Names what is missing on this machine, with the package to install, before anything is downloaded.
#
#   prerequisites.sh python           prints the interpreter to build with (or fails)
#   prerequisites.sh check [--e2e]    checks compiler, Node and headers; --e2e also the browser
#
# FUSELENS_PYTHON chooses the interpreter that the environment is made from.
set -euo pipefail

missing=()
need() { missing+=("$1"); }

supported() { # does interpreter $1 run, in a version that the compiler supports?
    "$1" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, 15)))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in "${FUSELENS_PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null && supported "$candidate"; then
            # A shim's own path says nothing; what it runs does.
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
        if [ -n "$candidate" ] && [ "$candidate" = "${FUSELENS_PYTHON:-}" ]; then
            echo "FUSELENS_PYTHON=$candidate is not a CPython 3.11 to 3.14." >&2
            return 1
        fi
    done
    return 1
}

report() {
    [ ${#missing[@]} -eq 0 ] && return 0
    echo "Fuselens needs what is not on this machine:" >&2
    printf '  - %s\n' "${missing[@]}" >&2
    exit 1
}

python=$(find_python) || {
    need "CPython 3.11 to 3.14 (Debian: apt-get install python3 python3-venv python3-dev)"
    report
}

case "${1:-check}" in
python)
    echo "$python"
    ;;
check)
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        need "the venv module of $python (Debian: apt-get install python3-venv)"
    "$python" - <<'PY' 2>/dev/null || need "the C headers of $python (Debian: apt-get install python3-dev)"
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_paths()["include"], "internal", "pycore_frame.h").is_file())
PY
    command -v "${CXX:-g++}" >/dev/null || need "a C++ compiler (${CXX:-g++}) (Debian: apt-get install g++)"
    command -v "${CC:-gcc}" >/dev/null || command -v cc >/dev/null ||
        need "a C compiler (${CC:-gcc}) (Debian: apt-get install gcc)"
    if ! command -v node >/dev/null; then
        need "Node 20 or later (Debian 13: apt-get install nodejs npm; Debian 12: the nodejs package of NodeSource)"
    elif [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
        need "Node 20 or later; $(command -v node) is $(node --version) (Debian: apt-get install nodejs)"
    fi
    command -v npm >/dev/null || need "npm (Debian: apt-get install npm)"
    if [ "${2:-}" = --e2e ]; then
        command -v "${FUSELENS_CHROMIUM:-chromium}" >/dev/null || command -v chromium-browser >/dev/null ||
            command -v google-chrome >/dev/null ||
            need "Chromium, for the tests in a real editor (Debian: apt-get install chromium ripgrep fonts-dejavu-core)"
        command -v nvim >/dev/null || need "Neovim, for the test in a second editor (Debian: apt-get install neovim)"
    fi
    report
    ;;
*)
    echo "usage: $0 python | check [--e2e]" >&2
    exit 2
    ;;
esac
