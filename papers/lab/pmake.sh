#!/bin/sh
# Verghese's Pmake workload: four makes side by side, of four jobs each. Each compiles six programs of workloads/.
for k in 1 2 3 4; do
    mkdir "$TMPDIR/$k"
    make -s -j4 -C "$TMPDIR/$k" -f "$PWD/pmake.mk" SOURCES="$PWD/workloads" &
done
wait
ls "$TMPDIR"/*/*.o | wc -l
