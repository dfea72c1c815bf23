#!/usr/bin/env bash
# Try docs/cluster.md's way to SLURM on this machine alone: a cluster of one node, two jobs with a Dask worker each, two
# notebooks at a time, and a job that is cancelled in the middle. For Debian or Ubuntu, as root:
#
#   apt-get install slurm-wlm && pip install dask-jobqueue && tools/try_slurm.sh [RECORD.json]
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf
cleanup() {
    local status=$?
    scancel --user root 2>/dev/null || true
    for daemon in slurmd slurmctld; do
        pkill -F "$folder/$daemon.pid" 2>/dev/null || true
        while pgrep -F "$folder/$daemon.pid" >/dev/null 2>&1; do sleep 0.2; done  # it still writes there
    done
    rm -rf "$folder"
    exit "$status"
}
trap cleanup EXIT

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

python3 - "$@" <<'PYTHON'
import json, subprocess, sys, threading, time
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

from dask_jobqueue import SLURMCluster

from dynatree_suite.bench.environment import describe_environment

NAMES = ("01_speculative_decoding", "02_tree_attention_masks", "03_draft_trees")
AGAIN = "started again after its worker died"
out, cancelled = Path(mkdtemp()), []
cluster = SLURMCluster(
    cores=1, processes=1, memory="2GB", walltime="00:20:00", interface="lo", scheduler_options={"interface": "lo"},
    job_extra_directives=["--cpus-per-task=1", "--mem=0"], job_directives_skip=["--mem="],
    job_script_prologue=["export OMP_NUM_THREADS=1"],
)
cluster.scale(jobs=2)
cluster.wait_for_workers(2)
command = [sys.executable, "-m", "dynatree_suite", "run", "--profile", "smoke", "--only", "0[123]*", "--out", str(out)]


def cancel_one():
    """Cancel the job of a worker that is running a notebook, and ask for another."""
    while len(list(out.glob("*.partial.ipynb"))) < 2:
        time.sleep(0.2)
    time.sleep(3)
    job = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()[0]
    subprocess.run(["scancel", job], check=True)
    cancelled.append(job)
    cluster.scale(jobs=3)


threading.Thread(target=cancel_one, daemon=True).start()
done = subprocess.run([*command, "--scheduler", cluster.scheduler_address], capture_output=True, text=True, check=False)
cluster.close()
print(done.stdout + done.stderr)
receipts = {name: json.loads((out / f"{name}.receipt.json").read_text(encoding="utf-8")) for name in NAMES}
again = [name for name in NAMES if any(name in line and AGAIN in line for line in done.stdout.splitlines())]
record = {
    "environment": describe_environment(), "dask_jobqueue": version("dask-jobqueue"), "distributed": version("distributed"),
    "slurm": subprocess.run(["sinfo", "--version"], capture_output=True, text=True, check=True).stdout.strip(),
    "jobs": 3, "cancelled": len(cancelled), "exit_code": done.returncode, "started_again": again,
    "finished": sorted(receipts), "seconds": {name: receipt["seconds"] for name, receipt in receipts.items()},
}
for file in sys.argv[1:]:
    Path(file).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
if done.returncode or len(cancelled) != 1 or len(again) != 1:
    sys.exit(f"One job was to be cancelled, and its notebook alone to start again: {json.dumps(record)}")
PYTHON
