#!/usr/bin/env bash
# Chromium and Neovim for the tests in real editors: found, or installed where this may be done (root on a Debian machine).
set -euo pipefail
cd "$(dirname "$0")/.."

if scripts/prerequisites.sh check --e2e 2>/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Chromium and Neovim from the system's packages"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium ripgrep fonts-dejavu-core neovim >/dev/null
fi
scripts/prerequisites.sh check --e2e
