#!/bin/sh
# Verghese's Splash workload: three programs share eight processors, whose numbers change as programs come and go.
# Raytrace has 8, 4, 3, 6 and 8 of them (section 4). Phases are as long as in papers/reproduction/matrix.toml.
#
# Only Raytrace marks its stable phase, so all is counted from the moment when its scene is built until its last ray.
phase_s=1.4
./raytrace --mark 190000 64 1 &
raytrace=$!
sleep 4.8 # 3.4 s until the mark, and a phase
taskset -a -p -c 0-3 $raytrace >/dev/null
OMP_NUM_THREADS=4 taskset -c 4-7 ./volrend 12 24 &
volrend=$!
sleep $phase_s
taskset -a -p -c 0-2 $raytrace >/dev/null
taskset -a -p -c 3-5 $volrend >/dev/null
OMP_NUM_THREADS=2 taskset -c 6-7 ./ocean 258 17 &
ocean=$!
sleep $phase_s
taskset -a -p -c 0-5 $raytrace >/dev/null
sleep $phase_s
taskset -a -p -c 0-7 $raytrace >/dev/null
wait $raytrace $volrend $ocean
