#!/bin/sh
# host_agent.sh ADDRESS COMMAND…: how mpirun starts a process on a host of the lab, in place of ssh. As with ssh, a shell
# reads the command.
host=h${1##*.}
shift
core=$(cat "/run/core/$host")
exec taskset --cpu-list "$core" nsenter --net="/run/netns/$host" --uts="/run/uts/$host" sh -c "$*"
