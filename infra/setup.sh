#!/usr/bin/env bash
# Create the orchestrator's virtual environment, with the locked packages, `nodesweep` and its
# emulator, both editable.
# `make setup` runs it. PYTHON: the interpreter (3.11). $1: folder of the environment.
set -euo pipefail
venv=$1
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "nodesweep needs Python 3.11, but '$PYTHON' is missing or another version; set PYTHON=/path/to/python3.11" >&2
    exit 2
fi
if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "'$PYTHON' has no venv module; on Debian: apt-get install python3-venv" >&2
    exit 2
fi
packages=$(grep -c '^[a-zA-Z0-9]' requirements.lock)
echo "Creating $venv with the $packages packages of requirements.lock. With an empty uv cache,"
echo "this downloads about 515 MB (measured on 2026-11-25)."
[ -x "$venv/bin/python" ] || "$PYTHON" -m venv "$venv"
uv_version=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements.lock)
# uv installs in seconds what takes pip minutes; pip installs uv, at the locked version.
"$venv/bin/uv" --version 2>/dev/null | grep -qF " $uv_version " || {
    echo "Fetching uv $uv_version"
    sed -n '/^uv==/,/[^\\]$/p' requirements.lock | # its lines of the lock, with hashes
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r /dev/stdin
}
# Show downloads and progress, but not a line per installed package.
"$venv/bin/uv" pip sync --python "$venv/bin/python" --require-hashes --compile-bytecode requirements.lock 2>&1 |
    sed -u '/^ [-+~] /d'
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps -e . -e infra/local
echo "The first \`make run\` builds the image and downloads about 230 MB more, of which"
echo "PyTorch without CUDA is 190 MB."
echo "Ready after $SECONDS s. Next: \`make run\` for the benchmark on this machine, or"
echo "\`$venv/bin/nodesweep init\` for your own."
