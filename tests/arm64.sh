#!/usr/bin/env bash
# Run tests as an ARM64 machine would, in QEMU's user-mode emulation:
#
#   tests/arm64.sh CPU [PYTEST ARGUMENTS]
#
# CPU is one that QEMU knows: neoverse-n1 has the integer dot product, a64fx has not. The first run
# fetches Debian's Python for ARM64 and wheels into .arm64/ (1.3 GB, or UNPAUSED_ARM64); it needs
# Debian or Ubuntu, and once, as root:
#
#   apt install qemu-user-static; dpkg --add-architecture arm64; apt update
#
# Emulation shows that the code is right, not how fast it is, nor how ARM reorders memory.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$(realpath -m "${UNPAUSED_ARM64:-.arm64}")
cpu=${1:?say which CPU: neoverse-n1 or a64fx}
shift
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) \
  || { echo "error: no qemu-aarch64: apt install qemu-user-static" >&2; exit 2; }

# The newest torch whose ARM64 wheel is a CPU build; pip would judge its dependencies by this host.
torch=(torch==2.10.0 filelock fsspec jinja2 networkx sympy)
packages=(gguf numba numpy psutil pytest pytest-timeout safetensors tokenizers transformers)

fetch() {
  local python packages_of debs
  python=$(apt-cache depends python3:arm64 | grep -om1 'python3\.[0-9]*') \
    || { echo "error: no arm64 packages: dpkg --add-architecture arm64; apt update" >&2; exit 2; }
  debs=$(mktemp -d)
  packages_of=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
    --no-breaks --no-replaces --no-enhances "$python:arm64" libstdc++6:arm64 | grep '^[a-z].*:arm64$')
  (cd "$debs" && xargs apt-get download -q <<<"$packages_of")
  rm -rf "$root.partial"
  mkdir -p "$root.partial"
  for deb in "$debs"/*.deb; do dpkg-deb --extract "$deb" "$root.partial"; done
  rm -rf "$debs"
  local options=(--quiet --target "$root.partial/site" --only-binary :all:
                 --python-version "${python#python}" --no-warn-conflicts
                 --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64
                 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64)
  python3 -m pip install "${options[@]}" "${packages[@]}"
  python3 -m pip install "${options[@]}" --upgrade --no-deps "${torch[0]}"
  python3 -m pip install "${options[@]}" --upgrade "${torch[@]:1}"
  ln -s "$python" "$root.partial/usr/bin/python-arm64"
  rm -rf "$root"
  mv "$root.partial" "$root"
}

[[ -e $root/usr/bin/python-arm64 ]] || fetch
# Its own cache: compiled code is kept for each processor.
export UNPAUSED_CACHE="${UNPAUSED_CACHE:-$root/cache}" HF_HUB_OFFLINE=1
exec "$qemu" -L "$root" -cpu "$cpu" -E PYTHONPATH="$root/site" -E PYTHONDONTWRITEBYTECODE=1 \
  "$root/usr/bin/python-arm64" -m pytest -q -p no:cacheprovider --timeout 1800 "$@"
