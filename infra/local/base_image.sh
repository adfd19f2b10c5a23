#!/bin/sh
# Build a base image for infra/image/Dockerfile on a machine that cannot pull one: Debian with Python, torch, the
# SageMaker toolkits, Open MPI and sshd, like AWS's Deep Learning Containers.
#
#     sh infra/local/base_image.sh [NAME]          NAME: localhost/nodesweep-base:bookworm
#
# Requires root, debootstrap, podman, and Python 3.11 with venv and a C compiler (the toolkit has no wheel). Packages come
# from Debian's mirror (DEBIAN_MIRROR) and from the sources in pip's configuration (files, PIP_*); neither setting ends
# up in the image. The other packages of infra/image/requirements-on-dlc.txt (and .lock) are in the image as wheels, so
# that builds need no network. An image with the same inputs is reused; FORCE=1 rebuilds it. Debian packages are cached in
# .nodesweep/base-image, wheels in pip's cache.
set -eu

name=${1:-localhost/nodesweep-base:bookworm}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
python=${PYTHON:-python3.11}
image=$(cd "$(dirname "$0")/../image" && pwd)
packages="python3 python3-venv ca-certificates iproute2 procps openmpi-bin openssh-server openssh-client"
programs="torch numpy sagemaker-training sagemaker-pytorch-training mpi4py attrs idna packaging PyYAML tqdm"
inputs=$(cat "$0" "$image/requirements.txt" "$image/requirements-on-dlc.txt" "$image/requirements-on-dlc.lock" | sha256sum | cut -c1-16)

die() { echo "base_image.sh: $*" >&2; exit 1; }
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || die "debootstrap and chroot need root"
for needed in debootstrap podman "$python" gcc; do
    command -v "$needed" >/dev/null || die "$needed is missing: apt-get install debootstrap podman runc python3-venv gcc"
done
cache=$(cd "$(dirname "$0")/../.." && pwd)/.nodesweep/base-image
mkdir -p "$cache/debs"
exec 9>"$cache/lock"
flock 9 # a concurrent run waits, then finds the finished image
if [ "$(podman image inspect --format '{{index .Labels "nodesweep.base"}}' "$name" 2>/dev/null)" = "$inputs" ] &&
    [ -z "${FORCE:-}" ]; then
    echo "$name is up to date"
    exit 0
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/nodesweep-base.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
root=$work/root

echo "1/4 Debian packages"
debootstrap --variant=minbase --cache-dir="$cache/debs" --include="$(echo "$packages" | tr ' ' ,)" bookworm "$root" "$mirror" \
    >"$work/debootstrap.log" 2>&1 || { tail -20 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man

echo "2/4 wheels"
"$python" -m venv "$work/pip"
mkdir "$work/wheels"
# Versions only: with hashes, pip would refuse packages that are not in the lock (mpi4py).
sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' "$image/requirements.txt" >"$work/constraints.txt"
grep '^torch==' "$work/constraints.txt" >"$work/torch.txt"
# shellcheck disable=SC2086  # words
"$work/pip/bin/python" -m pip wheel -qq --use-pep517 --wheel-dir "$work/wheels" --constraint "$work/constraints.txt" \
    $programs || die "pip could not get $programs"
"$work/pip/bin/python" -m pip wheel -qq --use-pep517 --wheel-dir "$work/wheels" --constraint "$work/torch.txt" \
    --find-links "$work/wheels" --requirement "$image/requirements-on-dlc.txt" || die "pip could not get requirements-on-dlc.txt"
"$work/pip/bin/python" -m pip wheel -qq --no-deps --wheel-dir "$work/wheels" --requirement "$image/requirements-on-dlc.lock" ||
    die "pip could not get requirements-on-dlc.lock"

echo "3/4 Python environment"
mkdir "$root/opt/wheels"
cp "$work"/wheels/*.whl "$root/opt/wheels/"
cp "$work/constraints.txt" "$root/opt/constraints.txt"
chroot "$root" python3 -m venv /opt/venv
# shellcheck disable=SC2086
chroot "$root" env -i PATH=/opt/venv/bin:/usr/bin:/bin HOME=/root /opt/venv/bin/python -m pip install --quiet --no-cache-dir \
    --no-index --find-links /opt/wheels --constraint /opt/constraints.txt $programs
rm "$root/opt/constraints.txt"
for wheel in "$root"/opt/wheels/*.whl; do # drop wheels of installed packages
    installed=$(basename "$wheel" | cut -d- -f1,2)
    if [ -d "$root/opt/venv/lib/python3.11/site-packages/$installed.dist-info" ]; then rm "$wheel"; fi
done
printf '[global]\nno-index = true\nfind-links = /opt/wheels\ndisable-pip-version-check = true\nroot-user-action = ignore\n' \
    >"$root/etc/pip.conf"

echo "4/4 ssh between nodes, and the image"
# One key for all nodes: as in AWS's containers, anyone with the image can log in to its nodes, which are on a private
# network.
mkdir -p "$root/run/sshd" "$root/root/.ssh"
chroot "$root" ssh-keygen -q -t rsa -N '' -f /root/.ssh/id_rsa
cp "$root/root/.ssh/id_rsa.pub" "$root/root/.ssh/authorized_keys"
printf 'Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    LogLevel ERROR\n' >"$root/root/.ssh/config"
chmod 700 "$root/root/.ssh"
chmod 600 "$root"/root/.ssh/id_rsa "$root/root/.ssh/config" "$root/root/.ssh/authorized_keys"
tar -C "$root" -c . | podman import --quiet \
    --change 'ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'ENV LANG=C.UTF-8' --change "LABEL nodesweep.base=$inputs" - "$name" >/dev/null
echo "$name: $(podman image inspect --format '{{.Size}}' "$name") bytes"
