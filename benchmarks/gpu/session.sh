#!/bin/bash
# All checks of a machine with a CUDA device in one go:
#     bash benchmarks/gpu/session.sh OUT SECONDS [smoke] [jobs] [probe] [memory] [times] [hang]
# Parts start side by side and use the device one by one: whoever holds the lock. What there is is packed into OUT every
# half minute, so that a session that is cut off loses little.
out=$1 limit=$2 work=$(mktemp -d)
shift 2
export GPU_LOCK=$work/lock PYTHONUNBUFFERED=1
touch "$GPU_LOCK"
run() { # NAME COMMAND…
  local name=$1 began
  began=$(date +%s)
  shift
  "$@" > "$work/$name.txt" 2>&1
  echo "$name: rc $? after $(($(date +%s) - began)) s" | tee -a "$work/parts.txt"
}
alone() { run "$1" flock "$GPU_LOCK" timeout 150 "${@:2}"; } # of its own time: who waits for the lock is not ended
pack() { # the smallest files first, so that what is cut off are long traces
  (cd "$work" && find . -type f -printf '%s %p\n' | sort -n | cut -d' ' -f2- | tar -cz -T - 2> /dev/null) > "$work.tgz"
  split -b 15M "$work.tgz" "$out/all.tgz."
}
for part in ${*:-smoke memory times probe jobs hang}; do
  case $part in
    smoke) run smoke timeout 150 python3 -m pytest -q -x -p no:cacheprovider tests/capture/test_on_a_gpu.py || exit 1 ;;
    jobs)
      timeout $((limit + 20)) python3 -m benchmarks.gpu.jobs benchmarks/gpu/watched \
        --out "$work/jobs" --limit "$limit" > "$work/jobs.txt" 2>&1 & ;;
    probe) alone probe python3 -m whystall probe all --device cuda --seconds 0.15 -o "$work/probe.json" -f & ;;
    memory) alone memory python3 -m benchmarks.gpu.memory "$work/memory.json" & ;;
    times) alone times python3 -m benchmarks.gpu.times "$work/times.json" & ;;
    hang)
      alone hang python3 -m whystall run -f -o "$work/hang" -- \
        python3 -m torch.distributed.run --nproc-per-node 2 -m benchmarks.gpu.hang & ;;
  esac
done
while sleep 30; do pack; done &
packing=$!
wait $(jobs -p | grep -v "^$packing$")
kill $packing
pack
cat "$work"/parts.txt "$work"/jobs.txt
