#!/bin/sh
# Certifies CUDA memory on the machine that this folder lies on. Needs an NVIDIA driver and nothing else.
# Writes what it finds to the folder OUT (where it was started, if unset), of memory of the kind MEMORY (`cuda`, if unset; `cuda:1`,
# `pinned`). Passes its arguments on to `kvlease certify`, and ends as that does.
set -u
here=$(dirname "$(readlink -f "$0")")
memory=${MEMORY:-cuda}
report="${OUT:-.}/$(printf %s "$memory" | tr : -)-$(date -u +%F)"
export KVLEASE_NIXL="$here/nixl/.nixl_cu12.mesonpy.libs"
{
    echo "date    $(date -u +%FT%TZ)"
    echo "kernel  $(uname -sr) $(uname -m)"
    echo "suite   $("$here/bin/kvlease" --version), commit $(cat "$here/commit")"
    nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id,memory.total --format=csv,noheader 2>/dev/null | sed 's/^/gpu     /'
} >"$report.txt" || exit 2
"$here/bin/kvlease" certify --memory "$memory" --json "$report.json" "$@" >>"$report.txt" 2>"$report.log"
code=$?
cat "$report.txt"
[ "$code" -eq 0 ] || tail -n 3 "$report.log" >&2
exit "$code"
