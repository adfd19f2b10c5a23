#!/bin/bash
# Time job.sbatch on 1, 2, 4 and 8 nodes, one job at a time, and create a report: bash slurm.sh
# job.sbatch runs the training with a single srun, which Slurm accounts as step 0. The time of a step
# includes the startup of Python.
set -eu
jobs=""
for repeat in ${repeats:-1 2 3}; do
  for nodes in $(shuf -e ${counts:-1 2 4 8}); do
    jobs="$jobs,$(sbatch --parsable --wait --nodes="$nodes" job.sbatch | cut -d';' -f1)"
  done
done
sacct --jobs="${jobs#,}" --format=JobID,NNodes,ElapsedRaw,State --parsable2 --noheader | awk -F'|' '
  BEGIN { print "nodes,train_seconds,billable_seconds,status" }
  $1 ~ /^[0-9]+$/ { nodes[$1] = $2; billed[$1] = $3; state[$1] = $4; order[++rows] = $1 }
  $1 ~ /^[0-9]+\.0$/ { sub(/\.0$/, "", $1); seconds[$1] = $3 }
  END {
    for (row = 1; row <= rows; row++) {
      job = order[row]
      status = state[job] == "COMPLETED" ? "Completed" : state[job] ~ /^CANCELLED/ ? "Stopped" : "Failed"
      print nodes[job] "," (status == "Completed" ? seconds[job] : "") "," (billed[job] > 0 ? billed[job] : "") "," status
    }
  }' > times.csv
nodesweep report --csv times.csv
