#!/usr/bin/env bash
# Try docs/cluster.md's way to SLURM on this machine alone: a cluster of one node, two jobs with a Dask worker each, two
# notebooks, and a job that is cancelled in the middle. For Debian or Ubuntu, as root:
#
#   apt-get install slurm-wlm && pip install dask-jobqueue && tools/try_slurm.sh
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf
trap 'scancel --user root 2>/dev/null; pkill -F "$folder/slurmd.pid" 2>/dev/null; pkill -F "$folder/slurmctld.pid" 2>/dev/null; rm -rf "$folder"' EXIT

pgrep munged >/dev/null || { install -d -o munge -g munge /run/munge; su -s /bin/sh munge -c /usr/sbin/munged; }
mkdir "$folder/state" "$folder/spool"
cat > "$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$host
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
NodeName=$host CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
slurmctld
slurmd
for _ in $(seq 30); do sinfo -h -o %t | grep -q idle && break || sleep 1; done
sinfo

python3 - <<'PYTHON'
import subprocess, sys, threading, time
from pathlib import Path
from tempfile import mkdtemp

from dask_jobqueue import SLURMCluster

out = mkdtemp()
cluster = SLURMCluster(
    cores=1, processes=1, memory="2GB", walltime="00:20:00", interface="lo", scheduler_options={"interface": "lo"},
    job_extra_directives=["--cpus-per-task=1", "--mem=0"], job_directives_skip=["--mem="],
    job_script_prologue=["export OMP_NUM_THREADS=1"],
)
cluster.scale(jobs=2)
cluster.wait_for_workers(2)
command = [sys.executable, "-m", "dynatree_lib", "run", "--profile", "smoke", "--only", "0[123]*", "--out", out]


def cancel_one():
    """Cancel the job of a worker that is running a notebook, and ask for another."""
    while not list(Path(out).glob("*.partial.ipynb")):
        time.sleep(0.2)
    time.sleep(3)
    job = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()[0]
    subprocess.run(["scancel", job], check=True)
    cluster.scale(jobs=3)


threading.Thread(target=cancel_one, daemon=True).start()
code = subprocess.run([*command, "--scheduler", cluster.scheduler_address], check=False).returncode
cluster.close()
sys.exit(code)
PYTHON
