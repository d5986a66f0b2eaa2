#!/bin/sh
# The points of `kvasir-bench model` through llama.cpp: tokens a second of 1 to 512 sequences together, each
# with 16 tokens before and 16 counted, and of a prompt of 512. Medians of runs that take turns.
#
#   model.sh MODEL.gguf [FOLDER OF PROGRAMS] [THREADS] [RUNS]
#
# README.md says how the programs are built.
set -eu

model=${1:?give a model file}
bin=${2:-build/bin}
threads=${3:-$(nproc)}
runs=${4:-5}
sequences=${SEQUENCES:-"1 8 64 256 512"}

out=$(mktemp -d)
trap 'rm -r "$out"' EXIT

decode() { # of $1 sequences together
    "$bin/llama-batched-bench" -m "$model" -t "$threads" -c $(($1 * 32)) -kvu -b 2048 -ub 512 -npp 16 -ntg 16 -npl "$1" \
        --output-format jsonl 2>"$out/log" | sed -n 's/.*"speed_tg": *\([0-9.]*\).*/\1/p'
}

prefill() {
    "$bin/llama-bench" -m "$model" -t "$threads" -p 512 -n 0 -r 1 -o jsonl 2>"$out/log" |
        sed -n 's/.*"avg_ts": *\([0-9.]*\).*/\1/p'
}

for run in $(seq "$runs"); do
    for n in $sequences; do
        decode "$n" >>"$out/$n"
    done
    prefill >>"$out/prefill"
    echo "run $run of $runs" >&2
done

median() { sort -n "$1" | awk '{ v[NR] = $1 } END { if (NR) printf "%.1f\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2; else print "failed" }'; }

printf '%-10s%8s%12s\n' kind rows tokens/s
for n in $sequences; do
    printf '%-10s%8s%12s\n' decode "$n" "$(median "$out/$n")"
done
printf '%-10s%8s%12s\n' prefill 512 "$(median "$out/prefill")"
[ -s "$out/prefill" ] || { tail -3 "$out/log" >&2; exit 1; }
