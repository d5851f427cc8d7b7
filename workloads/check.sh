#!/bin/sh
# check.sh FOLDER PROGRAM…: runs the kernels in FOLDER at a tiny size, twice with 1, 2, 3 and 8 threads.
# Their own checks must pass, both checksums must be equal, and equal to that of one thread except for
# rounding. Then runs them with bad arguments, for a usage line and exit status 2, and without enough
# memory, for a message and exit status 1.
set -u
folder=$1
shift
# Waiting threads sleep, because there may be fewer processors than threads.
export OMP_WAIT_POLICY=passive
failures=0

tiny() {
    case $1 in
    fft) echo 8 2 ;;
    lu) echo 64 8 2 ;;
    radix) echo 5000 2 2 ;;
    water) echo 3 15 ;;
    sor) echo 30 40 ;;
    mg) echo 4 3 ;;
    ft) echo 4 3 ;;
    is) echo 12 8 3 ;;
    sp | bt | nas_lu) echo 12 4 ;;
    ep) echo 18 ;;
    ua) echo 4 3 25 5 ;;
    quake) echo 8 20 ;;
    ammp) echo 1 2 ;;
    raytrace) echo 200 3 2 ;;
    volrend) echo 3 2 ;;
    ocean) echo 20 41 ;;
    splash_mix) echo 2 50 2 2 12 ;;
    pca) echo 20 60 ;;
    faces) echo 50 20 256 64 ;;
    amr) echo 8 40 8 ;;
    soft_body) echo 4 8 ;;
    *) echo no-size-given ;;
    esac
}


fail() {
    echo "check.sh: $*" >&2
    failures=$((failures + 1))
}

# The text between "checksum" and "init", which must be equal in every run.
checksum() {
    sed -n 's/.* checksum \(.*\) init .*/\1/p'
}

for program; do
    size=$(tiny "$program")
    for threads in 1 2 3 8; do
        export OMP_NUM_THREADS=$threads
        first=$("$folder/$program" $size) || fail "$program $size failed with $threads threads"
        again=$("$folder/$program" $size) || fail "$program $size failed with $threads threads"
        first=$(echo "$first" | checksum)
        again=$(echo "$again" | checksum)
        if [ -z "$first" ] || [ "$first" != "$again" ]; then
            fail "$program $size with $threads threads: checksum '$first', then '$again'"
        fi
        [ "$threads" = 1 ] && alone=$first
        awk "BEGIN { d = ($first) - ($alone); exit !(d * d <= 1e-18 * ($alone) * ($alone)) }" ||
            fail "$program $size: checksum $alone with one thread, $first with $threads"
    done
    case $program in
    raytrace | splash_mix)
        marked=$("$folder/$program" --mark $size | checksum)
        [ "$marked" = "$first" ] || fail "$program --mark $size: checksum '$marked', without '$first'"
        ;;
    esac
    export OMP_NUM_THREADS=2
    for bad in x -1 0 1e3 99999999999999999999 "1 2 3 4 5 6 7 8" --no-such-flag; do
        message=$("$folder/$program" $bad 2>&1 >/dev/null)
        status=$?
        case $status$message in
        "2usage: $program"*) ;;
        *) fail "$program $bad: exit status $status, '$message'" ;;
        esac
    done
done

export OMP_NUM_THREADS=1
for run in "fft 28" "lu 32768" "radix 1000000000" "sor 30000" "mg 9" "is 30" "quake 200" "soft_body 200"; do
    message=$(
        ulimit -v 500000
        "$folder"/$run 2>&1 >/dev/null
    )
    status=$?
    [ "$status: $message" = "1: ${run%% *}: out of memory" ] ||
        fail "$run without memory: exit status $status, '$message'"
done

[ $failures -eq 0 ] && echo "check.sh: $# kernels with 1, 2, 3 and 8 threads"
exit $((failures > 0))
