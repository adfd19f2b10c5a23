#!/usr/bin/env bash
# Make the orchestrator's environment: a virtual environment with the locked packages and `nodesweep` on its path.
# Run by `make setup`; PYTHON names the interpreter (3.11), $1 the environment.
set -euo pipefail
venv=$1
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "nodesweep needs Python 3.11, and '$PYTHON' is not it; set PYTHON=/path/to/python3.11" >&2
    exit 2
fi
if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "'$PYTHON' has no venv module; on Debian: apt-get install python3-venv" >&2
    exit 2
fi
packages=$(grep -c '^[a-zA-Z0-9]' requirements.lock)
echo "Making $venv: $packages packages of requirements.lock. Where uv's cache has none of"
echo "them it fetches about 515 MB (what came on 2026-11-25)."
[ -x "$venv/bin/python" ] || "$PYTHON" -m venv "$venv"
uv_version=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements.lock)
# uv installs in seconds what pip does in minutes; it comes by pip, at the locked version.
"$venv/bin/uv" --version 2>/dev/null | grep -qF " $uv_version " || {
    echo "Fetching uv $uv_version"
    sed -n '/^uv==/,/[^\\]$/p' requirements.lock | # its lines of the lock, hashes and all
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r /dev/stdin
}
# What it downloads and how far it is; not a line per package that it has installed.
"$venv/bin/uv" pip sync --python "$venv/bin/python" --require-hashes --compile-bytecode requirements.lock 2>&1 |
    sed -u '/^ [-+~] /d'
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps -e .
echo "\`make run\` builds the image once: about 230 MB more, 190 of them PyTorch"
echo "without CUDA."
echo "Ready after $SECONDS s. Next: \`make run\`, the benchmark on this machine, or"
echo "\`$venv/bin/nodesweep init\` for your own."
