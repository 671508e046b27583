#!/bin/bash
# Prolog of slurm.conf, as root on each node of an allocation, where gateways are services of the
# nodes: the job begins once this node's gateway serves trainers.
#
#   Prolog=/etc/slurm/prolog.d/landbridge.sh
#
# A partition is a site if the node has a region file of its name. A gateway that does not start
# fails the prolog, so that Slurm drains the node and requeues the job.
set -euo pipefail

region=${SLURM_JOB_PARTITION:-}
[ -n "$region" ] && [ -e "/etc/landbridge/$region.toml" ] || exit 0
# The unit is of Type=notify: the start ends when the gateway is up.
if ! systemctl start "landbridge@$region.service"; then
    echo "landbridge: gateway of $region did not start; see: journalctl -u landbridge@$region" >&2
    exit 1
fi
