#!/bin/sh
# Certifies CUDA memory on the machine that this folder lies on. Needs an NVIDIA driver, and system libraries as new as its maker's.
# Writes what it finds to the folder OUT (where it was started, if unset), of memory of the kind MEMORY (`cuda`, if unset; `cuda:1`,
# `pinned`). Passes its arguments on to `kvlease certify`, which must not be --memory and --json, and ends as that does.
set -u
here=$(dirname "$(readlink -f "$0")")
memory=${MEMORY:-cuda}
report="${OUT:-.}/$(printf %s "$memory" | tr -c '[:alnum:]' -)-$(uname -n)-$(date -u +%FT%H%M%SZ)"
export KVLEASE_NIXL="$here/nixl/.nixl_cu12.mesonpy.libs"
mkdir -p "${OUT:-.}" || exit 2
{
    echo "date    $(date -u +%FT%TZ)"
    echo "kernel  $(uname -sr) $(uname -m)"
    echo "suite   $("$here/bin/kvlease" --version), commit $(cat "$here/commit")"
    gpus=$(nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id,memory.total --format=csv,noheader 2>/dev/null) &&
        echo "$gpus" | sed 's/^/gpu     /' || echo "gpu     none that nvidia-smi tells of"
} >"$report.txt" || exit 2
echo "certifying $memory memory; progress goes to $report.log" >&2
"$here/bin/kvlease" certify --memory "$memory" --json "$report.json" "$@" >>"$report.txt" 2>"$report.log"
code=$?
[ "$code" -eq 0 ] || grep -v '^\[' "$report.log" >>"$report.txt"
echo "ended with exit status $code" >>"$report.txt"
cat "$report.txt"
exit "$code"
