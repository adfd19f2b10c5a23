#!/bin/bash
# Time train.py on 1, 2, 4 and 8 of the hosts in hosts.txt and create a report: bash torchrun.sh
# Run it on the first host. hosts.txt has one name per line; every host must be reachable by ssh and
# have the same directory. train.py prints "train_seconds X" on rank 0.
set -eu
repeats=${repeats:-3} counts=${counts:-"1 2 4 8"} port=29500
echo nodes,repeat,train_seconds,status > times.csv
for repeat in $(seq "$repeats"); do
  for nodes in $counts; do
    hosts=$(head -n "$nodes" hosts.txt)
    first=$(head -n 1 hosts.txt)
    for host in $hosts; do
      ssh -n "$host" "cd '$PWD' && torchrun --nnodes=$nodes --nproc-per-node=gpu --rdzv-id=n$nodes-r$repeat \
        --rdzv-backend=c10d --rdzv-endpoint=$first:$port train.py" > "n$nodes-r$repeat-$host.log" 2>&1 &
    done
    wait
    seconds=$(cat "n$nodes-r$repeat-"*.log | awk '/^train_seconds /{print $2; exit}')
    echo "$nodes,$repeat,$seconds,$([ -n "$seconds" ] && echo Completed || echo Failed)" >> times.csv
  done
done
nodesweep report --csv times.csv
